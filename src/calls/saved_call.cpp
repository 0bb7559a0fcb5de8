#include "calls/saved_call.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "calls/capture_paths.h"

namespace op_tools {
namespace {

using Items = std::vector<std::pair<Value, Value>>;

// --- Writing ---

Value strides_value(const OriginalStrides& restrided) {
  Items items;
  for (const auto& [index, strides] : restrided) {
    items.emplace_back(static_cast<int64_t>(index), make_tuple(Values(strides.begin(), strides.end())));
  }
  return make_dict(std::move(items));
}

// As input.pth has them.
constexpr std::pair<std::string_view, bool Lacks::*> kLacks[] = {
    {"arguments", &Lacks::arguments},
    {"inputs before", &Lacks::inputs_before},
    {"inputs after", &Lacks::inputs_after},
};

Items file_of(const SavedCall& call, Value args, Value kwargs) {
  Items items{{"name", call.name}, {"args", std::move(args)}, {"kwargs", std::move(kwargs)}};
  if (call.is_ours) items.emplace_back("id", static_cast<int64_t>(call.id));
  return items;
}

Value input_file(const SavedCall& call) {
  Items items = file_of(call, call.args, call.kwargs);
  if (!call.aten.is<None>()) items.emplace_back("aten", call.aten);
  if (!call.rng.is<None>()) items.emplace_back("rng", call.rng);
  if (!call.judged.is<None>()) items.emplace_back("judged", call.judged);
  if (!call.variation.is<None>()) items.emplace_back("variation", call.variation);
  if (!call.restrided.empty()) items.emplace_back("restrided", strides_value(call.restrided));
  if (call.node_gradients) items.emplace_back("node_gradients", true);
  Values lacks;
  for (const auto& [name, member] : kLacks) {
    if (call.lacks.*member) lacks.emplace_back(std::string(name));
  }
  if (!lacks.empty()) items.emplace_back("lacks", make_tuple(std::move(lacks)));
  return make_dict(std::move(items));
}

Value output_file(const SavedCall& call) {
  const SavedOutput& output = *call.output;
  Items items = file_of(call, make_tuple({output.result}), make_dict({}));
  if (!output.mutated.empty()) {
    Items mutated;
    for (const auto& [index, tensor] : output.mutated) mutated.emplace_back(static_cast<int64_t>(index), tensor);
    items.emplace_back("mutated", make_dict(std::move(mutated)));
  }
  if (!output.restrided.empty()) items.emplace_back("restrided", strides_value(output.restrided));
  if (!output.memory.is<None>()) items.emplace_back("memory", output.memory);
  return make_dict(std::move(items));
}

// --- Reading ---

const Value& required(const Value& dict, std::string_view key) {
  const Value* value = find_key(dict, key);
  if (!value) throw Error("has no '" + std::string(key) + "'; a captured call has name, args and kwargs");
  return *value;
}

const Values& sequence(const Value& value, const char* subject) {
  const Values* items = sequence_items(value);
  if (!items) throw Error(std::string(subject) + " is " + describe(value) + ", expected a tuple");
  return *items;
}

size_t tensor_index(const Value& key, const char* subject) {
  const auto* index = key.get_if<int64_t>();
  if (!index || *index < 0)
    throw Error(std::string(subject) + " has the key " + describe(key) + ", expected a tensor's index");
  return static_cast<size_t>(*index);
}

std::vector<int64_t> integers(const Value& value, const char* subject) {
  if (const auto* size = value.get_if<Size>()) return size->sizes;
  std::vector<int64_t> numbers;
  for (const Value& item : sequence(value, subject)) {
    const auto* number = item.get_if<int64_t>();
    if (!number) throw Error(std::string(subject) + " holds " + describe(item) + ", expected integers");
    numbers.push_back(*number);
  }
  return numbers;
}

const Items& dict_items(const Value& value, const char* subject) {
  const auto* dict = value.get_if<Dict>();
  if (!dict) throw Error(std::string(subject) + " is " + describe(value) + ", expected a dict");
  return *dict->items;
}

OriginalStrides restrided_in(const Value& file) {
  OriginalStrides strides;
  const Value* restrided = find_key(file, "restrided");
  if (!restrided) return strides;
  for (const auto& [key, numbers] : dict_items(*restrided, "'restrided'")) {
    strides[tensor_index(key, "'restrided'")] = integers(numbers, "'restrided'");
  }
  return strides;
}

// Problems of a file's content name the file, like those of its form.
void read_file(const StoredCall& stored, CallFile file, uint32_t pass, const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string text = error.what();
    // Readers of files name the whole path themselves.
    throw text.find(stored.path()) == std::string::npos ? Error(file_name(file, pass) + ": " + text) : error;
  }
}

void parse_input(const Value& file, SavedCall& call) {
  if (!file.is<Dict>()) throw Error("holds " + describe(file) + ", expected a dict with name, args and kwargs");
  const auto* name = required(file, "name").get_if<std::string>();
  if (!name || name->empty()) throw Error("'name' is " + describe(required(file, "name")) + ", expected a string");
  if (visible(*name) != *name) throw Error("'name' is '" + visible(*name) + "', which is no operator's");
  call.name = *name;
  call.args = required(file, "args");
  call.kwargs = required(file, "kwargs");
  sequence(call.args, "'args'");
  dict_items(call.kwargs, "'kwargs'");
  if (const Value* aten = find_key(file, "aten")) call.aten = *aten;
  if (const Value* rng = find_key(file, "rng")) call.rng = *rng;
  if (const Value* judged = find_key(file, "judged")) call.judged = *judged;
  if (const Value* variation = find_key(file, "variation")) call.variation = *variation;
  call.restrided = restrided_in(file);
  const Value* id = find_key(file, "id");
  if (const auto* number = id ? id->get_if<int64_t>() : nullptr) call.id = static_cast<uint64_t>(*number);
  call.is_ours = id != nullptr;
  call.from_ditorch = find_key(file, "identifier") && !call.is_ours;
  const Value* of_node = find_key(file, "node_gradients");
  const bool* is_of_node = of_node ? of_node->get_if<bool>() : nullptr;
  call.node_gradients = call.from_ditorch || (is_of_node && *is_of_node);
  if (const Value* lacks = find_key(file, "lacks")) call.lacks = lacks_of(*lacks);
  if (call.from_ditorch) call.lacks.inputs_after = true;
}

SavedOutput parse_output(const Value& file) {
  const Values& args = sequence(required(file, "args"), "'args'");
  SavedOutput output;
  // ditorch unpacks a tuple that a call returns, so several are a tuple, too.
  output.result = args.size() == 1 ? args[0] : make_tuple(args);
  if (const Value* mutated = find_key(file, "mutated")) {
    for (const auto& [key, value] : dict_items(*mutated, "'mutated'")) {
      output.mutated.emplace_back(tensor_index(key, "'mutated'"), value);
    }
  }
  output.restrided = restrided_in(file);
  if (const Value* memory = find_key(file, "memory")) output.memory = *memory;
  return output;
}

// The roots of the two snapshots are tuples: "[0][2]" is args[2], "[1].out" is kwargs.out.
void take_notes(std::vector<Note> from, const char* first, const char* second, std::vector<Note>& notes) {
  for (Note& note : from) {
    note.where = (note.where.starts_with("[0]") ? first : second) + note.where.substr(3);
    notes.push_back(std::move(note));
  }
}

}  // namespace

Lacks lacks_of(const Value& names) {
  Lacks lacks;
  for (const Value& item : sequence(names, "'lacks'")) {
    const auto* text = item.get_if<std::string>();
    const auto* known = std::find_if(std::begin(kLacks), std::end(kLacks),
                                     [text](const auto& entry) { return text && entry.first == *text; });
    if (known == std::end(kLacks)) throw Error("'lacks' has " + describe(item) + ", which this version does not know");
    lacks.*(known->second) = true;
  }
  return lacks;
}

void SavedCall::set_call(CallMeta of_call, Value random_state) {
  meta = std::move(of_call);
  name = meta.name;
  id = meta.id;
  rng = std::move(random_state);
  meta.random = !rng.is<None>();
}

void SavedCall::set_inputs(Snapshot inputs) {
  const Values& parts = *sequence_items(inputs.value);
  args = parts[0];
  kwargs = parts[1];
  restrided = OriginalStrides(inputs.restrided.begin(), inputs.restrided.end());
  has_meta = true;
  take_notes(std::move(inputs.unsupported), "args", "kwargs", meta.unsupported);
  meta.inputs = std::move(inputs.tensors);
}

void SavedCall::set_aten(Value tree) {
  aten = std::move(tree);
  const Values* parts = sequence_items(aten);
  const auto* called = parts && !parts->empty() ? parts->front().get_if<std::string>() : nullptr;
  meta.aten_name = called ? *called : std::string();
}

void SavedCall::set_output(Snapshot outputs) {
  const Values& parts = *sequence_items(outputs.value);
  output.emplace();
  output->result = parts[0];
  for (const auto& [index, tensor] : *parts[1].get_if<Dict>()->items) {
    output->mutated.emplace_back(static_cast<size_t>(*index.get_if<int64_t>()), tensor);
  }
  output->restrided = OriginalStrides(outputs.restrided.begin(), outputs.restrided.end());
  has_meta = true;
  take_notes(std::move(outputs.unsupported), "result", "mutated", meta.unsupported);
  meta.outputs = std::move(outputs.tensors);
}

std::string write_call(CallStore& store, const SavedCall& call, const std::string& side) {
  const CallKey key{call.name, call.id, side};
  const bool logs = log::enabled(log::Level::kInfo);
  std::string folder;
  const auto write = [&](CallFile file, uint32_t pass, const Value& value) {
    const std::string path = store.write(key, file, pass, value);
    if (logs) log::info(path + " saved");
    if (folder.empty()) folder = path.substr(0, path.rfind('/'));
  };
  if (!call.args.is<None>()) write(CallFile::kInput, 0, input_file(call));
  if (call.output) write(CallFile::kOutput, 0, output_file(call));
  uint32_t pass = call.first_pass;
  for (const SavedBackward& backward : call.backward) {
    write(CallFile::kGradInputs, pass, make_dict(file_of(call, backward.grad_inputs, make_dict({}))));
    Items outputs = file_of(call, backward.grad_outputs, make_dict({}));
    if (!call.judged.is<None>() || !backward.incomplete) outputs.emplace_back("incomplete", backward.incomplete);
    write(CallFile::kGradOutputs, pass, make_dict(std::move(outputs)));
    ++pass;
  }
  // Last: a call of op_tools without it was cut off.
  if (!call.meta_text.empty()) {
    store.write_text(key, CallFile::kMeta, 0, call.meta_text);
  } else if (call.has_meta) {
    store.write_text(key, CallFile::kMeta, 0, call.meta.to_json());
  }
  return folder;
}

SavedCall read_input(const StoredCall& stored) {
  SavedCall call;
  read_file(stored, CallFile::kInput, 0, [&] { parse_input(stored.read(CallFile::kInput), call); });
  if (stored.has(CallFile::kMeta)) {
    read_file(stored, CallFile::kMeta, 0, [&] {
      call.meta_text = stored.read_text(CallFile::kMeta);
      call.meta = CallMeta::from_json(call.meta_text);
      call.has_meta = true;
    });
  } else if (call.is_ours) {
    call.cut_off = "cut off: meta.json is missing: its program ended while the call was written";
  }
  return call;
}

void read_output(const StoredCall& stored, SavedCall* call) {
  if (!stored.has(CallFile::kOutput)) {
    // meta.json is written last, so the file was there.
    if (!call->meta.outputs.empty() && call->meta.error.empty() && call->cut_off.empty()) {
      call->cut_off = "damaged: " + file_name(CallFile::kOutput, 0) + " is missing, though meta.json describes it";
    }
    return;
  }
  read_file(stored, CallFile::kOutput, 0, [&] { call->output = parse_output(stored.read(CallFile::kOutput)); });
}

void read_backward(const StoredCall& stored, SavedCall* call) {
  uint32_t pass = 0;
  const auto gradients = [&](CallFile file, Value& into, bool* incomplete = nullptr) {
    read_file(stored, file, pass, [&] {
      const Value read = stored.read(file, pass);
      into = required(read, "args");
      sequence(into, "'args'");
      const Value* flag = incomplete ? find_key(read, "incomplete") : nullptr;
      if (const bool* known = flag ? flag->get_if<bool>() : nullptr) *incomplete = *known;
    });
  };
  for (; stored.has(CallFile::kGradOutputs, pass) && stored.has(CallFile::kGradInputs, pass); ++pass) {
    SavedBackward& backward = call->backward.emplace_back();
    gradients(CallFile::kGradOutputs, backward.grad_outputs, &backward.incomplete);
    gradients(CallFile::kGradInputs, backward.grad_inputs);
  }
  const bool half = stored.has(CallFile::kGradInputs, pass) != stored.has(CallFile::kGradOutputs, pass);
  if (half && !call->from_ditorch && call->cut_off.empty()) {
    call->cut_off = "cut off: half of a backward pass is missing: its program ended while the call was written";
  }
}

SavedCall read_call(const StoredCall& stored) {
  SavedCall call = read_input(stored);
  read_output(stored, &call);
  read_backward(stored, &call);
  return call;
}

}  // namespace op_tools
