#include "params.h"

#include <concepts>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

namespace tacit {

const char* mode_text(mlx::core::QuantizationMode mode) {
  switch (mode) {
    case mlx::core::QuantizationMode::Affine:
      return "affine";
    case mlx::core::QuantizationMode::Mxfp4:
      return "mxfp4";
    case mlx::core::QuantizationMode::Mxfp8:
      return "mxfp8";
    case mlx::core::QuantizationMode::Nvfp4:
      return "nvfp4";
  }
  throw std::invalid_argument("an unknown quantization mode");
}

namespace {

template <class V>
constexpr bool is_tuple = false;
template <class... E>
constexpr bool is_tuple<std::tuple<E...>> = true;
template <class A, class B>
constexpr bool is_tuple<std::pair<A, B>> = true;

template <class V>
constexpr bool is_optional = false;
template <class V>
constexpr bool is_optional<std::optional<V>> = true;

template <class V>
constexpr bool is_variant = false;
template <class... E>
constexpr bool is_variant<std::variant<E...>> = true;

template <class V>
concept Integer = std::integral<V> && !std::same_as<V, bool>;

template <class V>
concept Range = !std::same_as<V, std::string> && requires(const V& values) {
  values.begin();
  values.end();
  values.size();
};

template <class V>
constexpr bool is_integer_tuple = false;
template <class... E>
constexpr bool is_integer_tuple<std::tuple<E...>> = (Integer<E> && ...);

template <class V>
constexpr bool is_integer_range = false;
template <Range V>
constexpr bool is_integer_range<V> = Integer<std::remove_cvref_t<decltype(*std::declval<const V&>().begin())>>;

const char* text_of(mlx::core::QuantizationMode mode) {
  return mode_text(mode);
}

const char* text_of(mlx::core::ArgReduce::ReduceType type) {
  return type == mlx::core::ArgReduce::ArgMin ? "argmin" : "argmax";
}

const std::string& text_of(const std::string& text) {
  return text;
}

template <class V>
concept Text = requires(const V& value) { text_of(value); };

// A value whose type alone decides how it is written: what a list holds.
template <class V>
void write_element(ParamWriter& out, const V& value) {
  if constexpr (std::same_as<V, bool>) {
    out.boolean(value);
  } else if constexpr (Integer<V>) {
    out.integer(static_cast<int64_t>(value));
  } else if constexpr (std::floating_point<V>) {
    out.real(value);
  } else if constexpr (is_variant<V>) {
    std::visit([&](const auto& held) { write_element(out, held); }, value);
  } else if constexpr (is_tuple<V>) {
    out.list(std::tuple_size_v<V>);
    std::apply([&](const auto&... held) { (write_element(out, held), ...); }, value);
  } else {
    static_assert(Text<V>, "a list in primitives.tbl has elements that cannot be written");
    out.text(text_of(value));
  }
}

}  // namespace

// What primitives.tbl can say of a parameter: the C++ types that it allows, and how they are written.
namespace kind {

struct Skip {
  template <class V>
  static constexpr bool allows = true;
  template <class V>
  static void write(ParamWriter&, const V&) {}
};

// One type alone, and what writes it.
template <class T, auto Put>
struct Exactly {
  template <class V>
  static constexpr bool allows = std::same_as<V, T>;
  static void write(ParamWriter& out, T value) {
    (out.*Put)(value);
  }
};

using Bool = Exactly<bool, &ParamWriter::boolean>;
using Float = Exactly<float, &ParamWriter::real>;
using Double = Exactly<double, &ParamWriter::real>;
using ElementType = Exactly<Dtype, &ParamWriter::dtype>;

struct Int {
  template <class V>
  static constexpr bool allows = Integer<V>;
  template <class V>
  static void write(ParamWriter& out, V value) {
    out.integer(static_cast<int64_t>(value));
  }
};

struct Ints {
  template <class V>
  static constexpr bool allows = is_integer_range<V> || is_integer_tuple<V>;
  template <class V>
  static void write(ParamWriter& out, const V& values) {
    if constexpr (is_tuple<V>) {
      out.integers(std::tuple_size_v<V>);
      std::apply([&](auto... held) { (out.integer_element(held), ...); }, values);
    } else {
      out.integers(values.size());
      for (auto value : values) {
        out.integer_element(static_cast<int64_t>(value));
      }
    }
  }
};

struct Str {
  template <class V>
  static constexpr bool allows = Text<V>;
  template <class V>
  static void write(ParamWriter& out, const V& value) {
    out.text(text_of(value));
  }
};

struct List {
  template <class V>
  static constexpr bool allows = Range<V>;
  template <class V>
  static void write(ParamWriter& out, const V& values) {
    out.list(values.size());
    for (const auto& value : values) {
      write_element(out, value);
    }
  }
};

template <class K>
struct Maybe {
  template <class V>
  static constexpr bool allows = [] {
    if constexpr (is_optional<V>) {
      return K::template allows<typename V::value_type>;
    } else {
      return false;
    }
  }();
  template <class V>
  static void write(ParamWriter& out, const std::optional<V>& value) {
    if (value) {
      K::write(out, *value);
    } else {
      out.none();
    }
  }
};

}  // namespace kind

namespace {

// The class's parameters as a tuple, also where it has one that it returns bare.
template <class C>
auto state_of(const C& primitive) {
  auto state = primitive.state();
  if constexpr (is_tuple<decltype(state)>) {
    return state;
  } else {
    return std::make_tuple(std::move(state));
  }
}

template <class C>
using State = decltype(state_of(std::declval<const C&>()));

template <class C, class... K>
constexpr bool count_matches = std::tuple_size_v<State<C>> == sizeof...(K);

template <class C, class... K>
constexpr bool types_match = []<size_t... I>(std::index_sequence<I...>) {
  return (K::template allows<std::remove_cvref_t<std::tuple_element_t<I, State<C>>>> && ...);
}(std::index_sequence_for<K...>{});

template <class C>
constexpr bool has_parameters = [] {
  if constexpr (requires(const C& primitive) { primitive.state(); }) {
    return !std::same_as<decltype(std::declval<const C&>().state()), std::monostate>;
  } else {
    return false;
  }
}();

using Write = void (*)(const Primitive&, ParamWriter&);

template <class C, class... K>
void write(const Primitive& primitive, ParamWriter& out) {
  auto state = state_of(static_cast<const C&>(primitive));
  [&]<size_t... I>(std::index_sequence<I...>) {
    (K::write(out, std::get<I>(state)), ...);
  }(std::index_sequence_for<K...>{});
}

// By the class's mangled name: libmlx does not export the type information of its primitives, but an object still leads
// to its own. Unlike name(), which any class may return, it makes the cast safe.
std::unordered_map<std::string_view, Write> writers() {
  std::unordered_map<std::string_view, Write> rows;
#define TACIT_PARAMETERS(SYMBOL, CLASS, ...)                                                                       \
  static_assert(has_parameters<mlx::core::CLASS>, #CLASS " has parameters in primitives.tbl, but no state()");     \
  static_assert(count_matches<mlx::core::CLASS, __VA_ARGS__>, #CLASS " has another number of parameters than in "  \
                                                                     "primitives.tbl");                            \
  static_assert(types_match<mlx::core::CLASS, __VA_ARGS__>, #CLASS " has other parameter types than in "           \
                                                                   "primitives.tbl");                              \
  rows.emplace(SYMBOL, write<mlx::core::CLASS, __VA_ARGS__>);
#define TACIT_NO_PARAMETERS(SYMBOL, CLASS) \
  static_assert(!has_parameters<mlx::core::CLASS>, #CLASS " has a state() that primitives.tbl does not describe");
#include "primitives.inc"
#undef TACIT_PARAMETERS
#undef TACIT_NO_PARAMETERS
  return rows;
}

// The classes without data members, by mangled name: objects of one are all the same.
std::unordered_set<std::string_view> memberless() {
  std::unordered_set<std::string_view> classes;
#define TACIT_PARAMETERS(SYMBOL, CLASS, ...)
#define TACIT_NO_PARAMETERS(SYMBOL, CLASS)                  \
  if constexpr (sizeof(mlx::core::CLASS) == sizeof(Primitive)) { \
    classes.insert(SYMBOL);                                 \
  }
#include "primitives.inc"
#undef TACIT_PARAMETERS
#undef TACIT_NO_PARAMETERS
  return classes;
}

}  // namespace

bool same_primitive(const Primitive& a, const Primitive& b) {
  static const auto without_members = memberless();
  if (&a == &b) {
    return true;
  }
  std::string_view type = typeid(a).name();
  if (type != typeid(b).name() || std::strcmp(a.name(), b.name()) != 0) {
    return false;
  }
  // Those of a function that MLX fused are said to be alike where it has the same ops, in whatever order.
  if (type == typeid(mlx::core::Compiled).name()) {
    return false;
  }
  // MLX defines `is_equivalent` for most classes; what it cannot tell, the table may.
  if (a.is_equivalent(b) || same_kernel(a, b) || same_collective(a, b) || without_members.contains(type)) {
    return true;
  }
  ParamWriter left, right;
  return tacit_write_params(a, left) && tacit_write_params(b, right) && left.bytes() == right.bytes();
}

bool tacit_write_params(const Primitive& primitive, ParamWriter& out) {
  static const auto rows = writers();
  auto row = rows.find(typeid(primitive).name());
  if (row == rows.end()) {
    return false;
  }
  row->second(primitive, out);
  return true;
}

}  // namespace tacit
