#include "calls/snapshot.h"

#include <algorithm>

#include "calls/packed_values.h"

namespace op_tools {

Snapshot take_snapshot(const Value& value, const std::string& root, bool owned, bool restride) {
  Packer packer;
  packer.begin(owned, restride);
  packer.tree(value);
  packer.end();
  const Packed packed = packer.finish();
  Unpacker from(packed);
  Snapshot snapshot = from.snapshot(root);
  from.finish();
  return snapshot;
}

Value with_copies(const Value& value, const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& copies) {
  if (value.is<None>() || tensors.size() != copies.size()) return {};
  return map_tensors(value, [&](const at::Tensor& tensor) {
    const auto known =
        std::find_if(tensors.begin(), tensors.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
    return known != tensors.end() ? Value(copies[known - tensors.begin()]) : take_snapshot(tensor, "").value;
  });
}

void note_unsupported(const Value& value, const std::string& where, std::vector<Note>& notes) {
  if (const auto* unsupported = value.get_if<Unsupported>()) {
    notes.push_back({where, unsupported->type, unsupported->why});
  } else if (const Values* items = sequence_items(value)) {
    for (size_t i = 0; i < items->size(); ++i)
      note_unsupported((*items)[i], where + "[" + std::to_string(i) + "]", notes);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) {
      const auto* text = key.get_if<std::string>();
      note_unsupported(item, (where.empty() ? "" : where + ".") + (text ? *text : describe(key)), notes);
    }
  }
}

}  // namespace op_tools
