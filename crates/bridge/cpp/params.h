// The static parameters of a primitive, written as tagged bytes that src/param.rs reads.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "bridge.h"
#include "mlx/distributed/primitives.h"
#include "mlx/fast_primitives.h"

namespace tacit {

// Appends values to a byte buffer: a tag, then the value in this machine's byte order. Counts are `uint32_t`.
class ParamWriter {
 public:
  enum class Tag : uint8_t { none, boolean, integer, real, dtype, integers, text, list };

  void none() {
    put(Tag::none);
  }

  void boolean(bool value) {
    put(Tag::boolean);
    put(static_cast<uint8_t>(value));
  }

  void integer(int64_t value) {
    put(Tag::integer);
    put(value);
  }

  void real(double value) {
    put(Tag::real);
    put(value);
  }

  void dtype(Dtype value) {
    put(Tag::dtype);
    put(static_cast<int32_t>(code_of(value)));
  }

  void text(std::string_view value) {
    put(Tag::text);
    put(count(value.size()));
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }

  // `length` calls of integer_element() must follow.
  void integers(size_t length) {
    put(Tag::integers);
    put(count(length));
  }

  void integer_element(int64_t value) {
    put(value);
  }

  // `length` whole values must follow.
  void list(size_t length) {
    put(Tag::list);
    put(count(length));
  }

  void clear() {
    bytes_.clear();
  }

  const std::vector<uint8_t>& bytes() const {
    return bytes_;
  }

 private:
  template <class T>
  void put(T value) {
    auto at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }

  static uint32_t count(size_t length) {
    if (length > UINT32_MAX) {
      throw std::length_error("a parameter has more than 2^32 elements");
    }
    return static_cast<uint32_t>(length);
  }

  std::vector<uint8_t> bytes_;
};

// The word by which MLX's ops call a quantization mode.
const char* mode_text(mlx::core::QuantizationMode mode);

// The mangled names of the classes in primitives.tbl.
template <class C>
constexpr const char* mangled = nullptr;
#define TACIT_PARAMETERS(SYMBOL, CLASS, ...) TACIT_NO_PARAMETERS(SYMBOL, CLASS)
#define TACIT_NO_PARAMETERS(SYMBOL, CLASS) \
  template <>                              \
  inline constexpr const char* mangled<mlx::core::CLASS> = SYMBOL;
#include "primitives.inc"
#undef TACIT_PARAMETERS
#undef TACIT_NO_PARAMETERS

// `primitive` as one of this class; null if it is of another. libmlx does not export the type information of its
// primitives, but an object still leads to its own, and any class may return any name().
template <class C>
C* as(Primitive& primitive) {
  static_assert(mangled<C> != nullptr, "primitives.tbl has no such class");
  return std::strcmp(typeid(primitive).name(), mangled<C>) == 0 ? static_cast<C*>(&primitive) : nullptr;
}

// The primitive that makes `value`, if it is of this class.
template <class C>
C* made_by(const array& value) {
  return value.has_primitive() ? as<C>(value.primitive()) : nullptr;
}

// Receives a buffer once; it is only valid during the call.
struct Bytes {
  void* ctx;
  void (*take)(void* ctx, const uint8_t* data, size_t length);
};

// Appends the parameters that primitives.tbl names. False, and nothing is written, when the table has none for the
// class of `primitive`, which is also so for classes that are not MLX's own, whatever their name() is.
bool tacit_write_params(const Primitive& primitive, ParamWriter& out);

// Whether two primitives are the same with the same static parameters, so that they compute the same of the same
// operands. False when that cannot be known.
bool same_primitive(const Primitive& a, const Primitive& b);

}  // namespace tacit
