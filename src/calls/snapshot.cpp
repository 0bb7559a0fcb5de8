#include "calls/snapshot.h"

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
