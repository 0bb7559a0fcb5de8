#include "hooks/written_inputs.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"

namespace op_tools {
namespace {

// Operators and functions that write arguments without declaring it. A version counter may not say so either.
struct UndeclaredWrite {
  std::string_view names;       // base names of operators; a full name: of a Python function
  std::string_view parameters;  // in order; empty: those of the operator's schema
  std::string_view written;     // parameters
  std::string_view condition;   // written where this parameter is given, and is not false; empty: always
  bool otherwise;               // where the condition is not given
};

constexpr std::string_view kFunctional = "torch.nn.functional.";
constexpr std::string_view kDistributed = "torch.distributed.", kProcessGroup = "c10d::";
constexpr std::string_view kStatistics = "running_mean running_var";
constexpr UndeclaredWrite kUndeclared[] = {
    {"torch.nn.functional.batch_norm", "input running_mean running_var weight bias training", kStatistics, "training",
     false},
    {"torch.nn.functional.instance_norm", "input running_mean running_var weight bias use_input_stats", kStatistics,
     "use_input_stats", true},
    {"batch_norm native_batch_norm _batch_norm_impl_index cudnn_batch_norm miopen_batch_norm", "", kStatistics,
     "training", false},
    {"instance_norm", "", kStatistics, "use_input_stats", false},
    // Declared by the schema, which calls at the torch level do not have.
    {"_native_batch_norm_legit", "", kStatistics, "training", false},
    {"_batch_norm_with_update", "", kStatistics, "", true},
    {"batch_norm_update_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts", "", kStatistics, "", true},
    // Rows of more than max_norm are scaled down in place.
    {"torch.nn.functional.embedding", "input weight padding_idx max_norm", "weight", "max_norm", false},
    {"torch.nn.functional.embedding_bag", "input weight offsets max_norm", "weight", "max_norm", false},
    // By a function of Python's, element by element: no version counter moves.
    {"map_ map2_ apply_", "self", "self", "", true},
    // Collectives, by the operator and by the function.
    {"c10d::allreduce_ c10d::allreduce_coalesced_ c10d::broadcast_ c10d::reduce_ c10d::recv_ c10d::recv_any_source_",
     "", "tensors", "", true},
    {"c10d::allgather_ c10d::gather_ c10d::reduce_scatter_ c10d::scatter_ c10d::alltoall_", "", "output_tensors", "",
     true},
    {"c10d::_allgather_base_ c10d::_reduce_scatter_base_", "", "output_tensor", "", true},
    {"c10d::allgather_coalesced_", "", "output_lists", "", true},
    {"c10d::allgather_into_tensor_coalesced_ c10d::reduce_scatter_tensor_coalesced_", "", "outputs", "", true},
    {"c10d::alltoall_base_", "", "output", "", true},
    {"torch.distributed.distributed_c10d.all_reduce torch.distributed.distributed_c10d.broadcast "
     "torch.distributed.distributed_c10d.reduce torch.distributed.distributed_c10d.scatter "
     "torch.distributed.distributed_c10d.recv torch.distributed.distributed_c10d.irecv",
     "tensor", "tensor", "", true},
    {"torch.distributed.distributed_c10d.all_gather", "tensor_list", "tensor_list", "", true},
    {"torch.distributed.distributed_c10d.all_gather_into_tensor torch.distributed.distributed_c10d.all_gather_single",
     "output_tensor", "output_tensor", "", true},
    {"torch.distributed.distributed_c10d.gather", "tensor gather_list", "gather_list", "", true},
    {"torch.distributed.distributed_c10d.reduce_scatter torch.distributed.distributed_c10d.reduce_scatter_tensor "
     "torch.distributed.distributed_c10d.reduce_scatter_single torch.distributed.distributed_c10d.all_to_all_single",
     "output", "output", "", true},
    {"torch.distributed.distributed_c10d.all_to_all", "output_tensor_list", "output_tensor_list", "", true},
};

bool has_word(std::string_view words, std::string_view word) {
  bool contains = false;
  each_word(words, [&](std::string_view candidate) { contains = contains || candidate == word; });
  return contains;
}

const UndeclaredWrite* undeclared_write(std::string_view op_name) {
  static const auto& by_name = *[] {
    auto* rules = new std::unordered_map<std::string_view, const UndeclaredWrite*>;
    for (const UndeclaredWrite& row : kUndeclared) {
      each_word(row.names, [&](std::string_view name) { rules->emplace(name, &row); });
    }
    return rules;
  }();
  // The Python functions of torch.nn.functional and torch.distributed have parameters of their own.
  const bool has_own =
      op_name.starts_with(kFunctional) || op_name.starts_with(kDistributed) || op_name.starts_with(kProcessGroup);
  const auto entry = by_name.find(has_own ? op_name : base_name(op_name));
  return entry == by_name.end() ? nullptr : entry->second;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool has_written_list(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return is_written(argument) && argument.type()->kind() == c10::TypeKind::ListType;
  });
}

// A flag that is on, or a number that is given at all.
bool is_on(const Value* value, bool otherwise) {
  if (!value) return otherwise;
  if (value->is<None>()) return false;
  const bool* flag = value->get_if<bool>();
  return !flag || *flag;
}

// How a torch-level function's tensors are written, known by its name once and for all.
struct FunctionWrites {
  std::vector<size_t> positions;         // of arguments that are always written
  std::vector<std::string> keywords;     // likewise, where they are given by name
  const UndeclaredWrite* row = nullptr;  // written under its condition
  std::string parameters;                // of `row`
  bool lists = false;                    // of tensors, by the schema of an operator of this name

  bool has(size_t position) const { return std::find(positions.begin(), positions.end(), position) != positions.end(); }
  bool has(std::string_view keyword) const {
    return std::find(keywords.begin(), keywords.end(), keyword) != keywords.end();
  }
};

// The overloads of an operator that works in place (aten::add_); those that were there when this was first asked.
std::vector<c10::OperatorHandle> overloads_in_place(std::string_view base) {
  static const auto& by_name = *[] {
    auto* by_base = new std::unordered_multimap<std::string, c10::OperatorName>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name.ends_with('_')) by_base->emplace(name.name, name);
    }
    return by_base;
  }();
  std::vector<c10::OperatorHandle> handles;
  const auto [first, last] = by_name.equal_range("aten::" + std::string(base));
  for (auto entry = first; entry != last; ++entry) {
    if (auto op = c10::Dispatcher::singleton().findSchema(entry->second)) handles.push_back(*op);
  }
  return handles;
}

// A function that is an operator's own form in Python (torch.Tensor.add_, torch._foreach_add_) has its arguments in the
// schema's order. Arguments that every overload but those with out= writes are written by the function.
void take_from_schemas(std::string_view base, FunctionWrites& writes) {
  std::optional<std::set<size_t>> common;
  for (const c10::OperatorHandle& op : overloads_in_place(base)) {
    const auto& arguments = op.schema().arguments();
    if (std::any_of(arguments.begin(), arguments.end(),
                    [](const c10::Argument& argument) { return argument.is_out(); }))
      continue;
    writes.lists = writes.lists || has_written_list(op);
    std::set<size_t> written;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_written(arguments[i]) && (!common || common->contains(i))) written.insert(i);
    }
    common = std::move(written);
    writes.keywords.clear();
    for (const size_t i : *common) writes.keywords.push_back(arguments[i].name());
  }
  if (common) writes.positions.assign(common->begin(), common->end());
}

std::string schema_parameters(std::string_view base) {
  std::string names;
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::" + std::string(base), ""});
  if (!op) return names;
  for (const c10::Argument& argument : op->schema().arguments()) names.append(argument.name()).append(" ");
  return names;
}

// "torch.ops.library.op.overload", or without the overload. Nothing where there is no such operator.
std::optional<c10::OperatorHandle> operator_of(std::string_view name) {
  constexpr std::string_view kOps = "torch.ops.";
  if (!name.starts_with(kOps)) return std::nullopt;
  name.remove_prefix(kOps.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view rest = name.substr(dot + 1);
  const size_t end = std::min(rest.find('.'), rest.size());
  const std::string full = std::string(name.substr(0, dot)) + "::" + std::string(rest.substr(0, end));
  const std::string_view overload = end < rest.size() ? rest.substr(end + 1) : std::string_view();
  return c10::Dispatcher::singleton().findSchema({full, overload == "default" ? "" : std::string(overload)});
}

}  // namespace

bool gives_views(const c10::FunctionSchema& schema) {
  const auto shows = [](const c10::Argument& result) { return result.alias_info() && !result.alias_info()->isWrite(); };
  return !schema.returns().empty() && std::all_of(schema.returns().begin(), schema.returns().end(), shows);
}

namespace {

// Operators of which an overload gives views; those that were there when this was first asked.
bool is_view_operator(std::string_view base) {
  static const auto& names = *[] {
    auto* with_views = new std::unordered_set<std::string>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op && gives_views(op->schema())) with_views->insert(name.name);
    }
    return with_views;
  }();
  return names.contains("aten::" + std::string(base));
}

FunctionWrites learn(std::string_view name) {
  FunctionWrites writes;
  if (const auto op = operator_of(name)) {
    const auto& arguments = op->schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_written(arguments[i])) continue;
      writes.positions.push_back(i);
      writes.keywords.push_back(arguments[i].name());
    }
    writes.lists = has_written_list(*op);
    return writes;
  }
  const std::string_view base = base_name(name);
  const bool special = base.starts_with("__");
  // torch's convention: a name that ends with a single underscore changes its first argument.
  const bool in_place = (!special && base.ends_with('_')) || has_trait(base, OpTrait::kWritesFirstArgument);
  if (in_place && !special && !name.starts_with(kFunctional)) take_from_schemas(base, writes);
  if (in_place && writes.positions.empty()) writes.positions.push_back(0);
  writes.row = undeclared_write(name);
  if (writes.row) {
    writes.parameters = writes.row->parameters.empty() ? schema_parameters(base) : std::string(writes.row->parameters);
  }
  return writes;
}

struct HashOfName {
  using is_transparent = void;  // asked with a string_view, without making a string
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

const FunctionWrites& writes_of_function(std::string_view name) {
  static auto* const mutex = new std::mutex;
  // Never freed; an entry per function, stable addresses.
  static auto* const known = new std::unordered_map<std::string, FunctionWrites, HashOfName, std::equal_to<>>;
  {
    const std::lock_guard lock(*mutex);
    if (const auto entry = known->find(name); entry != known->end()) return entry->second;
  }
  FunctionWrites learned = learn(name);  // asks the dispatcher, which has locks of its own
  const std::lock_guard lock(*mutex);
  return known->try_emplace(std::string(name), std::move(learned)).first->second;
}

// A bit per tensor of a value, in the order of for_each_tensor.
void mark(const Value& value, bool written, std::vector<bool>& marks) {
  for_each_tensor(value, [&](const at::Tensor&) { marks.push_back(written); });
}

bool any(const std::vector<bool>& marks) {
  return std::find(marks.begin(), marks.end(), true) != marks.end();
}

std::vector<bool> by_function(OpCall& call) {
  const FunctionWrites& writes = writes_of_function(call.name);
  const UndeclaredWrite* row = writes.row;
  if (row && !row->condition.empty()) {
    const Value* condition = argument_of(writes.parameters, row->condition, call.args(), call.kwargs());
    if (!is_on(condition, row->otherwise)) row = nullptr;
  }
  const Value* inplace = find_key(call.kwargs(), "inplace");
  const bool first = inplace && inplace->get_if<bool>() && *inplace->get_if<bool>();
  const Value* out = find_key(call.kwargs(), "out");
  if (writes.positions.empty() && !row && !first && (!out || out->is<None>())) return {};
  std::vector<std::string_view> parameters;
  if (row) each_word(writes.parameters, [&](std::string_view parameter) { parameters.push_back(parameter); });
  std::vector<bool> marks;
  size_t position = 0;
  for (const Value& value : *sequence_items(call.args())) {
    const bool by_row = position < parameters.size() && has_word(row->written, parameters[position]);
    mark(value, by_row || (first && position == 0) || writes.has(position), marks);
    ++position;
  }
  for (const auto& [key, value] : *call.kwargs().get_if<Dict>()->items) {
    const auto* name = key.get_if<std::string>();
    mark(value, name && (*name == "out" || writes.has(*name) || (row && has_word(row->written, *name))), marks);
  }
  return any(marks) ? marks : std::vector<bool>();
}

std::vector<bool> by_operator(OpCall& call) {
  const WrittenArguments writes = written_arguments(*call.op);
  if (writes.declared.empty() && writes.undeclared.empty()) return {};
  std::vector<const Value*> values;  // by position in the schema
  for (const Value& value : *sequence_items(call.args())) values.push_back(&value);
  for (const auto& [name, value] : *call.kwargs().get_if<Dict>()->items) values.push_back(&value);
  const bool with_undeclared =
      !writes.condition || (*writes.condition < values.size() && is_on(values[*writes.condition], /*otherwise=*/false));
  const auto has = [](const std::vector<size_t>& positions, size_t i) {
    return std::find(positions.begin(), positions.end(), i) != positions.end();
  };
  std::vector<bool> marks;
  for (size_t i = 0; i < values.size(); ++i) {
    mark(*values[i], has(writes.declared, i) || (with_undeclared && has(writes.undeclared, i)), marks);
  }
  return any(marks) ? marks : std::vector<bool>();
}

}  // namespace

bool WrittenArguments::writes_undeclared(c10::ArrayRef<c10::IValue> arguments) const {
  if (undeclared.empty()) return false;
  return !condition || (arguments[*condition].isBool() && arguments[*condition].toBool());
}

WrittenArguments written_arguments(const c10::OperatorHandle& op) {
  WrittenArguments writes;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i])) writes.declared.push_back(i);
  }
  const UndeclaredWrite* row = undeclared_write(op.operator_name().name);
  if (!row) return writes;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (has_word(row->written, arguments[i].name()) && !is_written(arguments[i])) writes.undeclared.push_back(i);
    if (arguments[i].name() == row->condition) writes.condition = i;
  }
  return writes;
}

std::vector<bool> written_inputs(OpCall& call) {
  if (call.phase == Phase::kBackward) return {};
  if (call.level == Level::kTorch) return by_function(call);
  if (!call.op || !call.op->hasSchema()) return {};
  return by_operator(call);
}

bool writes_lists(const OpCall& call) {
  if (!base_name(call.name).ends_with('_')) return false;
  return call.op ? has_written_list(*call.op) : writes_of_function(call.name).lists;
}

bool gives_views(const OpCall& call) {
  if (has_trait(base_name(call.name), OpTrait::kUndeclaredView)) return true;
  if (call.op && call.op->hasSchema()) return gives_views(call.op->schema());
  if (const auto op = operator_of(call.name)) return gives_views(op->schema());
  const std::string_view base = base_name(call.name);
  return has_trait(base, OpTrait::kShowsElements) || is_view_operator(base);
}

bool writes_declared(const OpCall& call) {
  if (call.level == Level::kTorch) return !writes_of_function(call.name).positions.empty();
  return call.op && call.op->hasSchema() && call.op->schema().is_mutable();
}

bool writes_uncounted(const OpCall& call) {
  if (undeclared_write(call.name)) return true;
  if (call.level == Level::kTorch) return operator_of(call.name) && writes_declared(call);
  return writes_declared(call) && !call.op->hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
}

std::string undeclared_writes_of(std::string_view op_name) {
  const UndeclaredWrite* row = undeclared_write(op_name);
  if (!row) return {};
  const std::string where = row->condition.empty() ? "" : " where " + std::string(row->condition);
  return std::string(row->written) + where;
}

}  // namespace op_tools
