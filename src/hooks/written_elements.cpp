#include "hooks/written_elements.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "hooks/op_traits.h"
#include "hooks/python_arguments.h"
#include "tensor/plain_tensor.h"
#include "tensor/python_index.h"
#include "tensor/tensor_bits.h"

namespace op_tools {
namespace {

enum class Form : uint8_t { kCopy, kAssign, kPut, kAlong, kScatter, kMask, kFlat, kDiagonal };

// Operators that write those elements of their first argument which another argument names.
struct WritesPart {
  Form form;
  std::string_view names;       // base names
  std::string_view parameters;  // in order
};
constexpr WritesPart kWritesPart[] = {
    {Form::kCopy, "copy_", "self src"},
    {Form::kAssign, "__setitem__", "self index value"},
    {Form::kPut, "index_put_ _index_put_impl_", "self indices values accumulate"},
    {Form::kAlong, "index_copy_ index_fill_", "self dim index source"},
    {Form::kScatter, "scatter_", "self dim index src reduce"},
    {Form::kMask, "masked_fill_ masked_scatter_", "self mask value"},
    {Form::kFlat, "put_", "self index source accumulate"},
    {Form::kDiagonal, "fill_diagonal_", "self fill_value wrap"},
};

const WritesPart* writes_part(std::string_view op_name) {
  if (!is_torchs_own(op_name)) return nullptr;
  const std::string_view base = base_name(op_name);
  for (const WritesPart& row : kWritesPart) {
    bool is_named = false;
    each_word(row.names, [&](std::string_view name) { is_named = is_named || name == base; });
    if (is_named) return &row;
  }
  return nullptr;
}

at::Tensor index_on_cpu(const at::Tensor& tensor) {
  std::string type;
  if (!why_not_plain(tensor, &type).empty()) throw Error("an index is a tensor without elements of its own");
  return on_cpu(tensor);
}

const at::Tensor& tensor_of(const Value* value) {
  const auto* const tensor = value ? value->get_if<at::Tensor>() : nullptr;
  if (!tensor) throw Error("an index is no tensor");
  return *tensor;
}

bool is_true(const Value* value) {
  const auto* const flag = value ? value->get_if<bool>() : nullptr;
  return flag && *flag;
}

// Sets the flags of the elements that the call writes; `written`: of the tensor that is assigned, or true.
void set_flags(const WritesPart& row, OpCall& call, const Value& written, at::Tensor& flags) {
  const auto argument = [&](std::string_view name) {
    return argument_of(row.parameters, name, call.args(), call.kwargs());
  };
  const auto index = [&](std::string_view name) { return index_on_cpu(tensor_of(argument(name))); };
  const auto dim = [&] {
    const Value* const value = argument("dim");
    if (!value || !value->is<int64_t>()) throw Error("a dimension is no number");
    return *value->get_if<int64_t>();
  };
  const auto all_on_cpu = [](const Value& value) {
    return map_tensors(value, [](const auto& t) { return index_on_cpu(t); });
  };
  switch (row.form) {
    case Form::kCopy:
      return set_item(flags, op_tools::Ellipsis(), written);
    case Form::kAssign:
      if (const Value* const named = argument("index")) return set_item(flags, all_on_cpu(*named), written);
      throw Error("an assignment without an index");
    case Form::kPut: {
      const Value* const indices = argument("indices");
      const Values* const items = indices ? sequence_items(*indices) : nullptr;
      if (!items) throw Error("indices are no sequence");
      Values all;
      for (const Value& item : *items) {  // None stands for a dimension that is written whole
        const Value whole = Slice{std::make_shared<const Values>(Values{None(), None(), None()})};
        all.push_back(item.is<None>() ? whole : all_on_cpu(item));
      }
      return set_item(flags, make_tuple(std::move(all)), true);
    }
    case Form::kAlong:
      flags.index_fill_(dim(), index("index").to(at::kLong), true);
      return;
    case Form::kScatter:
      flags.scatter_(dim(), index("index"), true);
      return;
    case Form::kMask:
      flags.masked_fill_(index("mask"), true);
      return;
    case Form::kFlat: {
      const at::Tensor places = index("index");
      flags.put_(places, at::ones_like(places, at::kBool));
      return;
    }
    case Form::kDiagonal:
      flags.fill_diagonal_(true, is_true(argument("wrap")));
      return;
  }
}

// It adds to the elements: what was unwritten is so after it.
bool adds(const WritesPart& row, OpCall& call) {
  const auto argument = [&](std::string_view name) {
    return argument_of(row.parameters, name, call.args(), call.kwargs());
  };
  if (is_true(argument("accumulate"))) return true;
  const Value* const reduce = row.form == Form::kScatter ? argument("reduce") : nullptr;
  return reduce && !reduce->is<None>();
}

}  // namespace

bool names_elements(std::string_view op_name) {
  return writes_part(op_name) != nullptr;
}

std::optional<WrittenElements> elements_named(OpCall& call,
                                              const std::function<WrittenElements(const at::Tensor&)>& shown_by) {
  const WritesPart* const row = writes_part(call.name);
  if (!row) return std::nullopt;
  const Values* const args = sequence_items(call.args());
  const auto* const target = args && !args->empty() ? (*args)[0].get_if<at::Tensor>() : nullptr;
  if (!target || shown_by(*target).part == WrittenPart::kNotWatched) return std::nullopt;
  if (adds(*row, call)) return WrittenElements{WrittenPart::kNone};
  // Elements that are copied from memory that was not written are none.
  Value written = true;
  if (row->form == Form::kCopy || row->form == Form::kAssign) {
    const Value* const value =
        argument_of(row->parameters, row->form == Form::kCopy ? "src" : "value", call.args(), call.kwargs());
    if (const auto* const source = value ? value->get_if<at::Tensor>() : nullptr) {
      const WrittenElements shown = shown_by(*source);
      if (shown.part == WrittenPart::kNone || shown.part == WrittenPart::kUnknown) return shown;
      if (shown.part == WrittenPart::kSome) written = shown.flags;
    }
    if (row->form == Form::kCopy && written.is<bool>()) return std::nullopt;
  }
  try {
    at::Tensor flags = at::zeros(target->sizes(), at::kBool);
    set_flags(*row, call, written, flags);
    return WrittenElements{WrittenPart::kSome, std::move(flags)};
  } catch (const std::exception&) {  // a form of an index that only Python knows; or the call will fail as well
    return WrittenElements{WrittenPart::kUnknown};
  }
}

void note_writes(const OpCall& call, c10::ArrayRef<at::Tensor> inputs, const std::vector<bool>& written,
                 const std::optional<WrittenElements>& named, UnwrittenMemory* memory) {
  if (memory->is_empty()) return;
  std::optional<WrittenElements> all;  // of a tensor that is written whole
  const auto elements_of_whole = [&] {
    if (has_trait(base_name(call.name), OpTrait::kChangesInPlace)) return WrittenElements{WrittenPart::kNone};
    for (size_t i = 0; i < inputs.size(); ++i) {
      if ((i < written.size() && written[i]) || !memory->watches(inputs[i])) continue;
      const WrittenPart part = memory->shown_by(inputs[i]).part;
      if (part == WrittenPart::kUnknown) return WrittenElements{part};
      if (part == WrittenPart::kSome || part == WrittenPart::kNone) return WrittenElements{WrittenPart::kNone};
    }
    return WrittenElements{WrittenPart::kAll};
  };
  for (size_t i = 0; i < inputs.size() && i < written.size(); ++i) {
    if (!written[i] || !memory->watches(inputs[i])) continue;
    if (i == 0 && named) {
      memory->written(inputs[i], *named);
      continue;
    }
    if (!all) all = elements_of_whole();
    memory->written(inputs[i], *all);
  }
}

}  // namespace op_tools
