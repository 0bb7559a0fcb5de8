#include "run_op_from_data/resolve.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hooks/op_call.h"
#include "hooks/op_traits.h"
#include "run_op_from_data/compositions.h"
#include "run_op_from_data/made_tensor.h"
#include "run_op_from_data/python_names.h"
#include "tensor/cpu_kernels.h"
#include "tensor/ivalue.h"
#include "tensor/python_index.h"

namespace op_tools::replay {
namespace {

using Stack = torch::jit::Stack;

// How a call was written; it decides about parameter names and the loose forms of arguments.
enum class Form { kFunction, kMethod, kSchema };

// --- Names
// -------------------------------------------------------------------------------------------------------------

struct NameSpace {
  std::string_view prefix;       // of the Python name
  std::string_view aten_prefix;  // its counterpart in the operator's name
  Form form;
};

constexpr std::array<NameSpace, 13> kNameSpaces{{
    {"torch.Tensor.", "", Form::kMethod},
    {"torch.nn.functional.", "", Form::kFunction},
    {"torch.functional.", "", Form::kFunction},
    {"torch.linalg.", "linalg_", Form::kFunction},
    {"torch.fft.", "fft_", Form::kFunction},
    {"torch.special.", "special_", Form::kFunction},
    {"torch._C._nn.", "", Form::kFunction},
    {"torch._C._linalg.", "", Form::kFunction},
    {"torch._C._fft.", "", Form::kFunction},
    {"torch._C._special.", "", Form::kFunction},
    {"torch._C._VariableFunctions.", "", Form::kFunction},
    {"torch._VF.", "", Form::kFunction},
    {"torch.", "", Form::kFunction},
}};

// numpy's parameter names, which torch's parser takes as well.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kOtherNames{{
    {"input", "self"},
    {"x", "self"},
    {"a", "self"},
    {"x1", "self"},
    {"axis", "dim"},
    {"keepdims", "keepdim"},
    {"x2", "other"},
}};

// Python's parser makes a tensor of a number for these (with and without a trailing underscore) and
// prefers that to the overload for Scalar.
constexpr std::array<std::string_view, 10> kNumbersAsTensors{
    "add", "sub", "mul", "div", "divide", "multiply", "subtract", "true_divide", "floor_divide", "copy"};

// Operators that a file may not call: they open files by name.
constexpr std::array<std::string_view, 2> kRefused{"aten::from_file", "aten::_from_file"};

template <class Array>
bool contains(const Array& array, std::string_view text) {
  return std::find(array.begin(), array.end(), text) != array.end();
}

std::string_view without(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

// --- Binding to a schema
// -----------------------------------------------------------------------------------------------

bool is_int_list(const c10::Argument& argument) {
  const auto& type = argument.real_type();
  if (type->kind() != c10::TypeKind::ListType) return false;
  const auto element = type->containedType(0)->kind();
  return element == c10::TypeKind::IntType || element == c10::TypeKind::SymIntType;
}

// An attempt to bind a call to an overload.
class Binder {
 public:
  Binder(const c10::OperatorHandle& op, Form form)
      : schema_(op.schema()), form_(form), values_(schema_.arguments().size(), nullptr) {
    const std::string& name = schema_.operator_name().name;
    std::string_view base = without(name, "aten::");
    if (base.ends_with('_')) base.remove_suffix(1);
    binding_ = form == Form::kSchema || contains(kNumbersAsTensors, base) ? Binding::kDispatcher : Binding::kPython;
    for (size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (is_out(i)) outs_.push_back(i);
    }
  }

  bool bind(const Values& args, const Keywords& keywords, Stack* stack) {
    return place_positional(args) && place_keywords(keywords) && convert(stack);
  }
  bool has_out() const { return !outs_.empty(); }
  const std::string& why() const { return why_; }

 private:
  bool fail(std::string why) {
    why_ = std::move(why);
    return false;
  }
  const c10::Argument& argument(size_t index) const { return schema_.arguments()[index]; }
  bool is_out(size_t index) const {
    return argument(index).is_out() && argument(index).kwarg_only() && form_ != Form::kSchema;
  }

  bool place_positional(const Values& args) {
    std::vector<size_t> slots;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (form_ == Form::kSchema || !argument(i).kwarg_only()) slots.push_back(i);
    }
    if (form_ == Form::kMethod) {
      // The object comes first in the call, not always in the schema (where(condition, self,
      // other)).
      const auto self =
          std::find_if(slots.begin(), slots.end(), [&](size_t i) { return argument(i).name() == "self"; });
      if (self != slots.end()) std::rotate(slots.begin(), self, self + 1);
    }
    // x.view(2, 3), torch.zeros(2, 3): the only parameter is a list of ints, spelt out.
    const size_t first = form_ == Form::kMethod ? 1 : 0;
    const bool spelt_out = form_ != Form::kSchema && slots.size() == first + 1 && args.size() > first &&
                           is_int_list(argument(slots[first])) &&
                           std::all_of(args.begin() + static_cast<ptrdiff_t>(first), args.end(),
                                       [](const Value& value) { return value.is<int64_t>(); });
    if (spelt_out) {
      spelt_out_ = make_list(Values(args.begin() + static_cast<ptrdiff_t>(first), args.end()));
      if (first == 1) values_[slots[0]] = &args[0];
      values_[slots[first]] = &spelt_out_;
      return true;
    }
    if (args.size() > slots.size()) {
      return fail("takes " + std::to_string(slots.size()) + " positional arguments, " + std::to_string(args.size()) +
                  " were given");
    }
    for (size_t i = 0; i < args.size(); ++i) values_[slots[i]] = &args[i];
    return true;
  }

  std::optional<size_t> index_of(std::string_view name) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (argument(i).name() == name) return i;
    }
    return std::nullopt;
  }

  bool place_keywords(const Keywords& keywords) {
    for (const auto& [name, value] : keywords) {
      if (name == "out" && !outs_.empty()) {
        if (!place_out(value)) return false;
        continue;
      }
      std::optional<size_t> index = index_of(name);
      for (const auto& [other, schema_name] : kOtherNames) {
        if (!index && other == name && form_ != Form::kSchema) index = index_of(schema_name);
      }
      if (!index) {
        if (name == "out" && value.is<None>()) continue;
        return fail("has no argument '" + name + "'");
      }
      if (values_[*index]) return fail("got argument '" + name + "' twice");
      values_[*index] = &value;
    }
    return true;
  }

  bool place_out(const Value& value) {
    if (outs_.size() == 1) {
      values_[outs_[0]] = &value;
      return true;
    }
    const Values* items = sequence_items(value);
    if (!items || items->size() != outs_.size()) {
      return fail("wants " + std::to_string(outs_.size()) + " tensors as out");
    }
    for (size_t i = 0; i < outs_.size(); ++i) values_[outs_[i]] = &(*items)[i];
    return true;
  }

  bool convert(Stack* stack) {
    stack->reserve(values_.size());
    for (size_t i = 0; i < values_.size(); ++i) {
      const c10::Argument& wanted = argument(i);
      if (!values_[i]) {
        if (!wanted.default_value()) return fail("argument '" + wanted.name() + "' is missing");
        stack->push_back(*wanted.default_value());
        continue;
      }
      c10::IValue converted;
      if (!to_ivalue(*values_[i], wanted, &converted, &why_, binding_)) return false;
      stack->push_back(std::move(converted));
    }
    return true;
  }

  const c10::FunctionSchema& schema_;
  Form form_;
  Binding binding_;
  std::vector<const Value*> values_;  // by schema position
  std::vector<size_t> outs_;
  Value spelt_out_;
  std::string why_;
};

Value run_operator(const c10::OperatorHandle& op, Stack* stack) {
  CpuKernel(op).call(op, stack);
  const auto& returns = op.schema().returns();
  Values values;
  for (size_t i = 0; i < stack->size(); ++i) {
    const c10::TypePtr& type = i < returns.size() ? returns[i].real_type() : c10::AnyType::get();
    values.push_back(to_value((*stack)[i], *type));
  }
  stack->clear();
  if (values.empty()) return {};
  if (values.size() == 1) return values[0];
  return make_tuple(std::move(values));
}

BoundCall bound_to(const c10::OperatorHandle& op, Stack stack) {
  const c10::OperatorName& name = op.operator_name();
  BoundCall call;
  call.target = c10::toString(name);
  call.random = op.hasTag(at::Tag::nondeterministic_seeded);
  call.uninitialized = returns_uninitialized(base_name(name.name));
  call.returns_nothing = op.schema().returns().empty();
  call.workspace = workspace_of(base_name(name.name));
  call.stack = std::make_shared<Stack>(std::move(stack));
  call.run = [op, stack = call.stack] { return run_operator(op, stack.get()); };
  return call;
}

void refuse_dangerous(const c10::OperatorHandle& op) {
  if (contains(kRefused, op.operator_name().name)) {
    throw Error(op.operator_name().name + " opens a file by name; calls of it are not replayed");
  }
}

Values positional_of(const Value& args) {
  const Values* items = sequence_items(args);
  if (!items) throw Error("'args' is " + describe(args) + ", expected a tuple");
  return *items;
}

Keywords keywords_of(const Value& kwargs) {
  const auto* dict = kwargs.get_if<Dict>();
  if (!dict) throw Error("'kwargs' is " + describe(kwargs) + ", expected a dict");
  Keywords keywords;
  for (const auto& [key, value] : *dict->items) {
    const auto* name = key.get_if<std::string>();
    if (!name) throw Error("'kwargs' has the key " + describe(key) + ", expected a string");
    keywords.emplace_back(*name, value);
  }
  return keywords;
}

PythonOnly python_only(std::string_view name, const std::string& why) {
  if (is_graph_call(name)) {
    return PythonOnly(
        std::string(name) +
        " is a compiled graph, which is in its program only; OpCapture(compiled=\"nodes\") saves its operators");
  }
  return PythonOnly(std::string(name) + " exists in Python only" + (why.empty() ? "" : " in this form (" + why + ")"));
}

}  // namespace

struct Resolver::Impl {
  // The overloads of "aten::add", in no order.
  std::unordered_map<std::string, std::vector<c10::OperatorName>> overloads;

  c10::OperatorHandle handle(const c10::OperatorName& name) const {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) throw Error("there is no operator " + c10::toString(name) + " in this torch");
    refuse_dangerous(*op);
    return *op;
  }

  // By overload name if `name` has it, else the first overload that takes the arguments.
  BoundCall bind_target(const std::string& name, Form form, const Values& args, const Keywords& keywords) const;
  BoundCall bind_or_python(std::string_view name, const std::string& target, Form form, const Values& args,
                           const Keywords& keywords) const;
  std::vector<c10::OperatorHandle> candidates(const std::string& name) const;
  BoundCall bind_torch(std::string_view name, const Values& args, const Keywords& keywords) const;
};

namespace {

// The result of float() or int() for the number in a tensor.
Value as_number(Value number, bool to_float) {
  const auto convert = [&](auto value) {
    return to_float ? Value(static_cast<double>(value)) : Value(static_cast<int64_t>(value));
  };
  if (const bool* flag = number.get_if<bool>()) return convert(*flag);
  if (const int64_t* integer = number.get_if<int64_t>()) return convert(*integer);
  if (const double* real = number.get_if<double>(); real && std::abs(*real) < 0x1p63) return convert(*real);
  return number;
}

// Python's parser tries tensors before numbers and single numbers before lists.
std::vector<int> parser_rank(const c10::FunctionSchema& schema) {
  std::vector<int> ranks;
  for (const auto& argument : schema.arguments()) {
    c10::TypePtr type = argument.real_type();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
    const auto kind = type->kind();
    ranks.push_back(kind == c10::TypeKind::NumberType || kind == c10::TypeKind::ListType ? 1 : 0);
  }
  return ranks;
}

}  // namespace

// A single operator when the name has an overload, else all in the order in which Python's parser would try them.
std::vector<c10::OperatorHandle> Resolver::Impl::candidates(const std::string& name) const {
  const auto colons = name.find("::");
  const auto dot = name.find('.', colons == std::string::npos ? 0 : colons);
  if (dot != std::string::npos) return {handle({name.substr(0, dot), name.substr(dot + 1)})};
  const auto entry = overloads.find(name);
  if (entry == overloads.end()) throw Error("there is no operator " + name + " in this torch");
  std::vector<std::pair<std::vector<int>, c10::OperatorHandle>> ranked;
  for (const auto& overload : entry->second) {
    const auto op = c10::Dispatcher::singleton().findSchema(overload);
    if (op) ranked.emplace_back(parser_rank(op->schema()), *op);
  }
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return a.second.operator_name().overload_name < b.second.operator_name().overload_name;
  });
  std::vector<c10::OperatorHandle> handles;
  for (const auto& [rank, op] : ranked) {
    refuse_dangerous(op);
    handles.push_back(op);
  }
  return handles;
}

BoundCall Resolver::Impl::bind_target(const std::string& name, Form form, const Values& args,
                                      const Keywords& keywords) const {
  const bool wants_out = form == Form::kSchema || std::any_of(keywords.begin(), keywords.end(), [](const auto& item) {
                           return item.first == "out" && !item.second.template is<None>();
                         });
  std::string why;
  for (const auto& op : candidates(name)) {
    Binder binder(op, form);
    if (binder.has_out() && !wants_out) continue;
    Stack stack;
    if (binder.bind(args, keywords, &stack)) return bound_to(op, std::move(stack));
    if (why.size() < 400) why += (why.empty() ? "" : "; ") + c10::toString(op.operator_name()) + ": " + binder.why();
  }
  throw Error("no overload takes these arguments: " + why);
}

// The operator exists; arguments that it does not take are a form that Python turns into others
// first.
BoundCall Resolver::Impl::bind_or_python(std::string_view name, const std::string& target, Form form,
                                         const Values& args, const Keywords& keywords) const {
  try {
    return bind_target(target, form, args, keywords);
  } catch (const Error& error) {
    throw python_only(name, error.what());
  }
}

BoundCall Resolver::Impl::bind_torch(std::string_view name, const Values& args, const Keywords& keywords) const {
  if (name == "torch.Tensor.__getitem__" && args.size() == 2 && args[0].is<at::Tensor>()) {
    return {"indexing", false, false, [args] { return Value(get_item(*args[0].get_if<at::Tensor>(), args[1])); }};
  }
  if (name == "torch.Tensor.__setitem__" && args.size() == 3 && args[0].is<at::Tensor>()) {
    return {"indexing", false, false, [args] {
              set_item(*args[0].get_if<at::Tensor>(), args[1], args[2]);
              return Value();
            }};
  }
  if (name == "torch.tensor") {
    try {
      const at::Tensor tensor = made_tensor(args, keywords);
      return {"numbers", false, false, [args, keywords] { return Value(made_tensor(args, keywords)); }};
    } catch (const Error& error) {
      throw python_only(name, error.what());
    }
  }
  if (const auto rules = rules_for(name); !rules.empty()) {
    for (const NameRule* rule : rules) {
      if (rule->target.empty()) continue;
      const auto arguments = apply(*rule, args, keywords);
      if (!arguments) continue;
      std::string target(rule->target.substr(0, rule->target.find('[')));
      const std::string_view suffix = rule->target.substr(target.size());
      if (const Composition composed = composition(target)) {
        return {target, false, false, [composed, arguments] { return composed(*arguments); }};
      }
      BoundCall call = bind_or_python(name, target, Form::kFunction, {}, *arguments);
      if (suffix == "[float]" || suffix == "[int]") {
        call.run = [run = std::move(call.run), suffix] { return as_number(run(), suffix == "[float]"); };
      }
      if (suffix == "[0]" || suffix == "[:2]") {
        call.run = [run = std::move(call.run), is_single = suffix == "[0]"] {
          const Value all = run();
          const Values* items = sequence_items(all);
          if (!items || items->size() < 2) return all;
          return is_single ? (*items)[0] : make_tuple({(*items)[0], (*items)[1]});
        };
      }
      return call;
    }
    throw python_only(name, rules[0]->target.empty() ? "" : "these arguments have no single operator");
  }
  for (const auto& space : kNameSpaces) {
    if (!name.starts_with(space.prefix)) continue;
    const std::string_view rest = name.substr(space.prefix.size());
    // torch.linalg.norm is linalg_norm, torch._C._linalg.linalg_norm too.
    std::string target = "aten::" + std::string(space.aten_prefix) + std::string(rest);
    if (rest.find('.') != std::string_view::npos || overloads.find(target) == overloads.end()) break;
    return bind_or_python(name, target, space.form, args, keywords);
  }
  throw python_only(name, "");
}

Values arguments_of(const BoundCall& call) {
  const auto dot = call.target.find('.');
  const c10::OperatorName name(call.target.substr(0, dot), dot == std::string::npos ? "" : call.target.substr(dot + 1));
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  if (!call.stack || !op) throw Error("this is no single operator of the dispatcher");
  Values values;
  for (size_t i = 0; i < call.stack->size(); ++i) {
    values.push_back(to_value((*call.stack)[i], *op->schema().arguments()[i].real_type()));
  }
  return values;
}

Resolver::Resolver() : impl_(std::make_unique<Impl>()) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    impl_->overloads[name.name].push_back(name);
  }
}

Resolver::~Resolver() = default;

BoundCall Resolver::bind_recorded(const Value& recorded) const {
  const Values* parts = sequence_items(recorded);
  const auto* name = parts && parts->size() == 2 ? (*parts)[0].get_if<std::string>() : nullptr;
  if (!name) throw Error("'aten' is " + describe(recorded) + ", expected (name, arguments)");
  return impl_->bind_target(*name, Form::kSchema, positional_of((*parts)[1]), {});
}

BoundCall Resolver::bind(std::string_view name, const Value& args, const Value& kwargs) const {
  const Values positional = positional_of(args);
  Keywords keywords = keywords_of(kwargs);
  if (name.find("::") != std::string_view::npos) {
    return impl_->bind_target(std::string(name), Form::kSchema, positional, keywords);
  }
  // torch.ops.aten.add.Tensor, which calls itself aten.add.Tensor (and aten.add.default).
  if (name.starts_with("torch.ops.") || !name.starts_with("torch.")) {
    std::string target(without(name, "torch.ops."));
    if (const auto dot = target.find('.'); dot != std::string::npos) {
      target.replace(dot, 1, "::");
      if (target.ends_with(".default")) target.resize(target.size() - std::string_view("default").size());
      return impl_->bind_target(target, Form::kSchema, positional, keywords);
    }
  }
  // A factory's requires_grad is applied to the operator's result.
  bool requires_grad = false;
  std::erase_if(keywords, [&](const auto& item) {
    if (item.first != "requires_grad" || !item.second.template is<bool>()) return false;
    requires_grad = *item.second.template get_if<bool>();
    return true;
  });
  BoundCall call = impl_->bind_torch(name, positional, keywords);
  if (requires_grad) {
    call.run = [run = std::move(call.run)] {
      Value result = run();
      if (const auto* tensor = result.get_if<at::Tensor>()) tensor->requires_grad_(true);
      return result;
    };
  }
  return call;
}

}  // namespace op_tools::replay
