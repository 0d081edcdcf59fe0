// The primitive of a collective.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "description.h"
#include "group.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/ops.h"
#include "poisoned.h"

namespace tacit {

namespace {

class Collective : public Primitive {
 public:
  Collective(std::shared_ptr<Group> group, mlx::core::Stream stream, Op op, int peer, Shape shape, Dtype dtype)
      : Primitive(stream),
        group_(std::move(group)),
        op_(op),
        peer_(peer),
        number_(op == Op::enter ? 0 : ++numbers),
        shape_(std::move(shape)),
        dtype_(dtype) {}

  // Nothing for what is no communication.
  std::optional<uint64_t> number() const {
    return number_ == 0 ? std::nullopt : std::optional(number_);
  }

  // The same once more, with a number of its own.
  std::shared_ptr<Primitive> anew() {
    return std::make_shared<Collective>(group_, stream(), op_, peer_, shape_, dtype_);
  }

  // Of a message only the other end would know.
  void miss() const {
    if (op_ != Op::enter && op_ != Op::send && op_ != Op::recv) {
      group_->miss(number_);
    }
  }

  void eval_cpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    auto& output = outputs.front();
    if (op_ == Op::enter) {
      output.copy_shared_buffer(inputs[0]);
      return;
    }
    // On a thread that did not make it this throws, before anything has begun: its own thread may still evaluate it.
    mlx::core::cpu::get_command_encoder(stream());
    // The others wait for this rank all the same.
    group_->or_end([&] { queue(inputs, output); });
  }

  void eval_gpu(const std::vector<array>& inputs, std::vector<array>& outputs) override {
    if (op_ == Op::enter) {
      outputs.front().copy_shared_buffer(inputs[0]);
      return;
    }
    throw std::runtime_error(std::string(name()) + " runs on the CPU");
  }

  std::vector<array> vjp(
      const std::vector<array>& primals, const std::vector<array>& cotangents,
      const std::vector<int>& argnums, const std::vector<array>& outputs) override {
    std::vector<array> gradients;
    for (auto argnum : argnums) {
      gradients.push_back(
          argnum == 0 ? gradient(primals[0], cotangents[0], outputs[0]) : mlx::core::zeros_like(primals[argnum]));
    }
    return gradients;
  }

  array gradient(const array& x, const array& back, const array& output) const {
    // Each rule is what the reverse of the op is on all ranks together, so that its own reverse is right as well: what was
    // replicated enters into what each rank computes apart.
    switch (op_) {
      case Op::sum:
        return again(Op::enter, back);
      case Op::enter:
        return again(Op::sum, back);
      case Op::max:
      case Op::min: {
        auto at = mlx::core::equal(x, output);
        return mlx::core::where(at, shared(at, again(Op::enter, back)), mlx::core::zeros_like(back));
      }
      case Op::gather:
        return part_of(again(Op::enter, back), 0, group_->rank() * x.shape(0), (group_->rank() + 1) * x.shape(0));
      case Op::gather_parts:
        return again(Op::scatter, back);
      case Op::scatter:
        return again(Op::gather_parts, back);
      default:
        throw std::invalid_argument(std::string(name()) + " has no gradient");
    }
  }

  std::vector<array> jvp(
      const std::vector<array>& primals, const std::vector<array>& tangents, const std::vector<int>&) override {
    const auto& along = tangents[0];
    if (op_ == Op::max || op_ == Op::min) {
      auto at = mlx::core::equal(primals[0], again(op_, primals[0]));
      auto zero = mlx::core::zeros_like(along);
      return {shared(at, again(Op::sum, mlx::core::where(at, along, zero)))};
    }
    if (op_ == Op::send || op_ == Op::recv) {
      throw std::invalid_argument(std::string(name()) + " has no tangent");
    }
    return {again(op_, along)};
  }

  Batched vmap(const std::vector<array>& inputs, const std::vector<int>& axes) override {
    if (op_ == Op::recv) {
      throw std::invalid_argument("what is received cannot be mapped");
    }
    auto joins = op_ == Op::gather || op_ == Op::gather_parts || op_ == Op::scatter;
    if (!joins || axes[0] < 0) {
      return {{again(op_, inputs[0])}, axes};
    }
    // The examples stand behind the axis along which parts are joined.
    return {{again(op_, mlx::core::moveaxis(inputs[0], axes[0], 1))}, {1}};
  }

  const char* name() const override {
    switch (op_) {
      case Op::sum:
        return "Sum AllReduce";
      case Op::max:
        return "Max AllReduce";
      case Op::min:
        return "Min AllReduce";
      case Op::gather:
      case Op::gather_parts:
        return "AllGather";
      case Op::scatter:
        return "Sum ReduceScatter";
      case Op::enter:
        return "Enter";
      case Op::send:
        return "Send";
      case Op::recv:
        return "Recv";
      case Op::split:
        break;
    }
    return "Collective";
  }

  // What happens between machines happens each time: whether two operands are found to be equal may differ between ranks, and one
  // of them would then wait for a collective that the others do not begin.
  bool is_equivalent(const Primitive& other) const override {
    return op_ == Op::enter && does_the_same(other);
  }

  // Whether it is the same collective of another graph. A message is one each time.
  bool does_the_same(const Primitive& other) const {
    const auto* same = dynamic_cast<const Collective*>(&other);
    return same != nullptr && same->group_ == group_ && same->op_ == op_ && op_ != Op::send && op_ != Op::recv;
  }

  std::vector<Shape> output_shapes(const std::vector<array>& inputs) override {
    if (op_ == Op::recv) {
      return {shape_};
    }
    return {shape_of(*group_, op_, inputs[0].shape())};
  }

  static Shape shape_of(const Group& group, Op op, Shape shape) {
    auto size = group.size();
    if (op != Op::enter) {
      group.check_count(shape);
    }
    if (op == Op::gather || op == Op::gather_parts || op == Op::scatter) {
      if (shape.empty()) {
        throw std::invalid_argument("parts are joined along the first axis, and a scalar has none");
      }
      if (op == Op::scatter && shape[0] % size != 0) {
        throw std::invalid_argument(
            "the first of the axes, " + std::to_string(shape[0]) + " long, has no equal part for each of " +
            std::to_string(size) + " ranks");
      }
      auto extent = op == Op::scatter ? shape[0] / size : int64_t{shape[0]} * size;
      if (extent > std::numeric_limits<int>::max()) {
        throw std::invalid_argument(
            "the parts of " + std::to_string(size) + " ranks, each " + std::to_string(shape[0]) +
            " long, are joined to an axis of more than 2147483647");
      }
      shape[0] = static_cast<int>(extent);
    }
    return shape;
  }

  static array emit(const std::shared_ptr<Group>& group, Op op, int peer, const array& input) {
    auto stream = op == Op::enter ? mlx::core::default_stream(mlx::core::default_device()) : group->stream();
    auto shape = shape_of(*group, op, input.shape());
    auto primitive = std::make_shared<Collective>(group, stream, op, peer, shape, input.dtype());
    return array(std::move(shape), input.dtype(), std::move(primitive), {input});
  }

  static array receive(const std::shared_ptr<Group>& group, int peer, Shape shape, Dtype dtype) {
    group->check_count(shape);
    auto primitive = std::make_shared<Collective>(group, group->stream(), Op::recv, peer, shape, dtype);
    return array(std::move(shape), dtype, std::move(primitive), {});
  }

 private:
  // Has the stream of the group run it.
  void queue(const std::vector<array>& inputs, array& output) {
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    output.set_data(mlx::core::allocator::malloc(output.nbytes()));
    encoder.set_output_array(output);
    std::optional<Borrowed> read;
    // What stands behind the operand is only the collective before.
    if (op_ != Op::recv) {
      auto rows = row_major(inputs[0], stream());
      encoder.set_input_array(rows);
      read.emplace(rows);
    }
    auto run = std::make_shared<Run>(output);
    encoder.dispatch([group = group_, op = op_, peer = peer_, number = number_, run = std::move(run), read = std::move(read),
                      write = Borrowed(output)]() mutable {
      auto turn = group->turn();
      auto current = group->begin(op, peer, number, read ? read->value : write.value);
      try {
        group->run(current, read ? &*read : nullptr, write, run->poisoned());
      } catch (const std::exception& error) {
        poison(write.value.data<char>(), write.value.nbytes(), write.value.dtype());
        Failure failure = [group, current = std::move(current), text = std::string(error.what())](bool later) {
          group->raise(current, text, later);
        };
        if (!run->watched()) {
          failure(false);
        }
        run->fail(std::move(failure));
      }
      run.reset();
    });
  }

  array again(Op op, const array& input) const {
    return emit(group_, op, peer_, input);
  }

  // Ranks that share the extreme, each with `true` at its place, share its derivative.
  array shared(const array& at, const array& derivative) const {
    return mlx::core::divide(derivative, again(Op::sum, mlx::core::astype(at, derivative.dtype())));
  }

  std::shared_ptr<Group> group_;
  Op op_;
  int peer_;
  static inline std::atomic<uint64_t> numbers{0};
  uint64_t number_;
  Shape shape_;
  Dtype dtype_;
  Watched watched_;
};

}  // namespace
}  // namespace tacit
