// An option of a tool, declared once: name, type, default, environment variable and a line of help stand where its
// member is declared. The parser of keyword arguments, the environment, error messages, op-tools doctor, op-tools run
// and the tables in docs/ all read this declaration.
//
//   struct ToyOptions : ToolOptions {
//     ToyOptions() : ToolOptions("OP_TOY") {}
//     Option<int64_t> max_calls{this, kNoLimit, {"max_calls", "OP_TOY_MAX_CALLS", "count at most N calls"},
//     at_least(1)};
//   };
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/export.h"

namespace op_tools {

constexpr int64_t kMaxNumber = std::numeric_limits<int64_t>::max();
constexpr int64_t kNoLimit = kMaxNumber;

struct OptionText {
  std::string name;      // of the argument
  std::string variable;  // that is read when no argument was given; empty: OP_TOY_MAX_CALLS, from prefix and name
  std::string help;      // a single line
  // The form that a user may write, where the C++ type does not tell: "names" (operators, as a list or
  // comma-separated), "path", "dtypes" (a dict of dtypes, or its text).
  std::string type = {};
  std::string default_text = {};  // for people, where the value alone does not tell
};

// The same for those that know no C++ types: documentation, Python, the command line.
struct OptionDescription {
  OptionText text;
  std::vector<std::string> choices;  // of type "choice"
};

// The types of an argument before its option is known.
using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;

class OptionSet;

class OP_TOOLS_API OptionBase {
 public:
  virtual ~OptionBase() = default;

  const std::string& name() const { return text_.name; }
  const std::string& variable() const { return text_.variable; }
  bool is_argument() const { return origin_ == Origin::kArgument; }
  bool is_set() const { return origin_ != Origin::kDefault; }
  // Where a user would change it, for messages: "max_calls=" when it was given as an argument, else its variable.
  std::string source() const;

  virtual bool take(const OptionValue& value) = 0;  // as an argument; false when it is of another type
  virtual std::string wanted() const = 0;           // "True or False", for the message of a value of another type
  virtual OptionDescription describe() const = 0;

  // Reads the variable where no argument was given. Error that names argument or variable when the value is not
  // allowed.
  void resolve();

 protected:
  enum class Origin : uint8_t { kDefault, kArgument, kVariable };

  OptionBase(OptionSet* owner, OptionText text);
  OptionBase(const OptionBase&) = default;
  OptionBase& operator=(const OptionBase&) = default;

  virtual void read(std::string_view value) = 0;
  virtual void check() const = 0;

  OptionText text_;
  Origin origin_ = Origin::kDefault;
};

// The options of a tool. They are members of classes derived from this class, and announce themselves when they are
// made. An option is found by its distance from the set, so that each copy of a set has its own. Copying a part of a
// set (to a base class) would break that, so only derived classes can be copied.
class OP_TOOLS_API OptionSet {
 public:
  virtual ~OptionSet() = default;

  std::string prefix;  // "OP_TOY": the prefix of its variables' names

  template <class Function>
  void for_each(Function&& function) {
    for (const ptrdiff_t offset : offsets_) {
      function(*reinterpret_cast<OptionBase*>(reinterpret_cast<char*>(this) + offset));
    }
  }
  std::vector<OptionDescription> describe() const;

 protected:
  explicit OptionSet(std::string_view prefix) : prefix(prefix) {}
  OptionSet(const OptionSet&) = default;
  OptionSet& operator=(const OptionSet&) = default;

 private:
  friend class OptionBase;
  std::vector<ptrdiff_t> offsets_;
};

// Allowed values, both bounds included.
struct IntegerRange {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = kMaxNumber;
};
constexpr IntegerRange at_least(int64_t least) {
  return {least, kMaxNumber};
}

// The names of an enum's values, which count from 0 in this order.
using Choices = std::vector<std::string_view>;
// The place of `text` in `choices`. Error that names `source` and lists the choices when it is none.
OP_TOOLS_API size_t choice_from_text(std::string_view source, std::string_view text, const Choices& choices);

// The differences between the types of options. `Rule`: the allowed values, given with the declaration.
template <class T>
struct OptionType;

template <>
struct OP_TOOLS_API OptionType<bool> {
  struct Rule {};
  static constexpr const char* kName = "bool";
  static constexpr const char* kWanted = "True or False";
  static bool read(std::string_view source, std::string_view text, const Rule& rule);
  static void check(std::string_view, bool, const Rule&) {}
  static std::string text(bool value, const Rule& rule);
};
template <>
struct OP_TOOLS_API OptionType<int64_t> {
  using Rule = IntegerRange;
  static constexpr const char* kName = "int";
  static constexpr const char* kWanted = "an integer";
  static int64_t read(std::string_view source, std::string_view text, const Rule& rule);
  static void check(std::string_view source, int64_t value, const Rule& rule);
  static std::string text(int64_t value, const Rule& rule);
};
// The range of a number with a fraction; NaN and infinities are never allowed.
enum class NumberRange : uint8_t { kAny, kNotNegative, kAboveZero };
constexpr NumberRange kNotNegative = NumberRange::kNotNegative, kAboveZero = NumberRange::kAboveZero;

template <>
struct OP_TOOLS_API OptionType<double> {
  using Rule = NumberRange;
  static constexpr const char* kName = "float";
  static constexpr const char* kWanted = "a number";
  static double read(std::string_view source, std::string_view text, const Rule& rule);
  static void check(std::string_view source, double value, const Rule& rule);
  static std::string text(double value, const Rule& rule);
};
// Of a variable that is no option of a tool. Throws Error, as options do.
OP_TOOLS_API double number_in_environment(const std::string& variable, NumberRange range, double without);

template <>
struct OP_TOOLS_API OptionType<std::string> {
  struct Rule {};
  static constexpr const char* kName = "str";
  static constexpr const char* kWanted = "a string";
  static std::string read(std::string_view source, std::string_view text, const Rule& rule);
  static void check(std::string_view, const std::string&, const Rule&) {}
  static std::string text(const std::string& value, const Rule& rule);
};
template <>
struct OP_TOOLS_API OptionType<std::vector<int64_t>> {
  using Rule = IntegerRange;  // of each
  static constexpr const char* kName = "ints";
  static constexpr const char* kWanted = "a list of integers";
  static std::vector<int64_t> read(std::string_view source, std::string_view text, const Rule& rule);
  static void check(std::string_view source, const std::vector<int64_t>& value, const Rule& rule);
  static std::string text(const std::vector<int64_t>& value, const Rule& rule);
};
template <class Enum>
requires std::is_enum_v<Enum>
struct OptionType<Enum> {
  using Rule = Choices;
  static constexpr const char* kName = "choice";
  static constexpr const char* kWanted = "a string";
  static Enum read(std::string_view source, std::string_view text, const Rule& choices) {
    return static_cast<Enum>(choice_from_text(source, text, choices));
  }
  static void check(std::string_view, Enum, const Rule&) {}
  static std::string text(Enum value, const Rule& choices) { return std::string(choices[static_cast<size_t>(value)]); }
};

template <class T>
class Option final : public OptionBase {
 public:
  using Type = OptionType<T>;
  using Rule = typename Type::Rule;

  Option(OptionSet* owner, T default_value, OptionText text, Rule rule = {})
      : OptionBase(owner, std::move(text)), value_(std::move(default_value)), rule_(std::move(rule)) {}

  // Gives it as an argument.
  Option& operator=(T value) {
    value_ = std::move(value);
    origin_ = Origin::kArgument;
    return *this;
  }
  Option& operator=(std::string_view name) requires std::is_enum_v<T> {
    return *this = Type::read(text_.name + "=", name, rule_);
  }

  const T& get() const { return value_; }
  operator const T&() const { return value_; }  // NOLINT: reads like its value
  friend bool operator==(const Option& option,
                         const T& value) requires(!std::is_arithmetic_v<T> && !std::is_enum_v<T>) {
    return option.value_ == value;
  }

  bool take(const OptionValue& value) override {
    if constexpr (std::is_enum_v<T>) {
      const auto* name = std::get_if<std::string>(&value);
      if (name) *this = std::string_view(*name);
      return name != nullptr;
    } else {
      if constexpr (std::is_same_v<T, double>) {
        if (const auto* integer = std::get_if<int64_t>(&value)) *this = static_cast<double>(*integer);
        if (std::holds_alternative<int64_t>(value)) return true;
      }
      const auto* typed = std::get_if<T>(&value);
      if (typed) *this = *typed;
      return typed != nullptr;
    }
  }
  std::string wanted() const override { return Type::kWanted; }
  OptionDescription describe() const override {
    OptionDescription description{text_, {}};
    if (text_.type.empty()) description.text.type = Type::kName;
    if (text_.default_text.empty()) description.text.default_text = Type::text(value_, rule_);
    if constexpr (std::is_enum_v<T>) description.choices.assign(rule_.begin(), rule_.end());
    return description;
  }

 protected:
  void read(std::string_view value) override { value_ = Type::read(text_.variable, value, rule_); }
  void check() const override { Type::check(source(), value_, rule_); }

 private:
  T value_;
  Rule rule_;
};

// An environment variable that something of ours reads: for op-tools doctor.
struct Variable {
  std::string name;
  std::string help;
  bool per_operator = false;  // also with an operator's name in front: LINEAR_OP_DTYPE_CAST_DICT
};

}  // namespace op_tools
