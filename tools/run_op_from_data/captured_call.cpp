#include "run_op_from_data/captured_call.h"

#include <string_view>

#include "base/error.h"
#include "compare/saved_facts.h"

namespace op_tools::replay {
namespace {

const Value& required(const Value& dict, std::string_view key) {
  const Value* value = find_key(dict, key);
  if (!value) throw Error("has no '" + std::string(key) + "'; a captured call has name, args and kwargs");
  return *value;
}

const Values& sequence(const Value& value, const char* what) {
  const Values* items = sequence_items(value);
  if (!items) throw Error(std::string(what) + " is " + describe(value) + ", expected a tuple");
  return *items;
}

size_t tensor_index(const Value& key, const char* what) {
  const auto* index = key.get_if<int64_t>();
  if (!index || *index < 0)
    throw Error(std::string(what) + " has the key " + describe(key) + ", expected a tensor's index");
  return static_cast<size_t>(*index);
}

std::vector<int64_t> integers(const Value& value, const char* what) {
  if (const auto* size = value.get_if<Size>()) return size->sizes;
  std::vector<int64_t> numbers;
  for (const Value& item : sequence(value, what)) {
    const auto* number = item.get_if<int64_t>();
    if (!number) throw Error(std::string(what) + " holds " + describe(item) + ", expected integers");
    numbers.push_back(*number);
  }
  return numbers;
}

const std::vector<std::pair<Value, Value>>& dict_items(const Value& value, const char* what) {
  const auto* dict = value.get_if<Dict>();
  if (!dict) throw Error(std::string(what) + " is " + describe(value) + ", expected a dict");
  return *dict->items;
}

// Problems of a file's content name the file, like those of its form.
template <class Read>
void read_file(const StoredCall& stored, const char* file, Read read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string text = error.what();
    // Readers of files name the whole path themselves.
    throw text.find(stored.path()) == std::string::npos ? Error(std::string(file) + ": " + text) : error;
  }
}

Tensors gradient_list(const Value& file) {
  Tensors gradients;
  for (const Value& item : sequence(required(file, "args"), "'args'")) {
    const auto* tensor = item.get_if<at::Tensor>();
    gradients.push_back(tensor ? tensor->detach() : at::Tensor());
  }
  return gradients;
}

void read_input(const StoredCall& stored, CapturedCall* call) {
  const Value file = stored.read(CallFile::kInput);
  if (!file.is<Dict>()) throw Error("holds " + describe(file) + ", expected a dict with name, args and kwargs");
  const auto* name = required(file, "name").get_if<std::string>();
  if (!name || name->empty()) throw Error("'name' is " + describe(required(file, "name")) + ", expected a string");
  call->name = *name;
  call->args = required(file, "args");
  call->kwargs = required(file, "kwargs");
  sequence(call->args, "'args'");
  dict_items(call->kwargs, "'kwargs'");
  if (const Value* aten = find_key(file, "aten")) call->aten = *aten;
  if (const Value* rng = find_key(file, "rng")) call->rng = *rng;
  if (const Value* restrided = find_key(file, "restrided")) {
    for (const auto& [key, strides] : dict_items(*restrided, "'restrided'")) {
      call->restrided[tensor_index(key, "'restrided'")] = integers(strides, "'restrided'");
    }
  }
  if (const Value* judged = find_key(file, kJudgedKey)) call->judged = *judged;
  const Value* id = find_key(file, "id");
  call->is_ours = id != nullptr;
  if (id && id->is<int64_t>()) call->id = static_cast<uint64_t>(*id->get_if<int64_t>());
  call->from_ditorch = find_key(file, "identifier") && !call->is_ours;
}

void add_output(const StoredCall& stored, CapturedCall* call) {
  const Value file = stored.read(CallFile::kOutput);
  const Values& args = sequence(required(file, "args"), "'args'");
  SavedOutput output;
  // ditorch unpacks a tuple that a call returns, so several are a tuple, too.
  output.result = args.size() == 1 ? args[0] : make_tuple(args);
  if (const Value* mutated = find_key(file, "mutated")) {
    for (const auto& [key, value] : dict_items(*mutated, "'mutated'")) {
      const auto* tensor = value.get_if<at::Tensor>();
      if (tensor) output.mutated.emplace_back(tensor_index(key, "'mutated'"), tensor->detach());
    }
  }
  if (const Value* memory = find_key(file, kMemoryKey)) output.memory = *memory;
  call->output = std::move(output);
}

void find_unsupported(const Value& value, std::vector<std::string>* found) {
  if (const auto* unsupported = value.get_if<Unsupported>()) {
    found->push_back(unsupported->type + " (" + unsupported->why + ")");
  } else if (const Values* items = sequence_items(value)) {
    for (const Value& item : *items) find_unsupported(item, found);
  } else if (const auto* dict = value.get_if<Dict>()) {
    for (const auto& [key, item] : *dict->items) find_unsupported(item, found);
  }
}

}  // namespace

c10::Device CapturedCall::device() const {
  c10::Device device(c10::kCPU);
  for (const c10::Device& input : meta.input_devices) {
    if (!input.is_cpu()) device = input;
  }
  return device;
}

std::optional<c10::ScalarType> CapturedCall::autocast() const {
  if (level() == Level::kAten) return std::nullopt;
  for (const Autocast& autocast : meta.autocast) {
    if (autocast.device == device().type()) return autocast.dtype;
  }
  return std::nullopt;
}

CapturedCall read_call(const StoredCall& stored) {
  CapturedCall call;
  read_file(stored, "input.pth", [&] { read_input(stored, &call); });
  if (stored.has(CallFile::kMeta)) {
    read_file(stored, "meta.json", [&] { call.meta = parse_meta(stored.read_text(CallFile::kMeta)); });
  }
  return call;
}

void read_output(const StoredCall& stored, CapturedCall* call) {
  if (stored.has(CallFile::kOutput)) read_file(stored, "output.pth", [&] { add_output(stored, call); });
}

void read_backward(const StoredCall& stored, CapturedCall* call) {
  for (uint32_t pass = 0; stored.has(CallFile::kGradOutputs, pass) && stored.has(CallFile::kGradInputs, pass); ++pass) {
    BackwardPass backward;
    read_file(stored, "grad_outputs.pth", [&] {
      const Value file = stored.read(CallFile::kGradOutputs, pass);
      backward.grad_outputs = gradient_list(file);
      if (const Value* incomplete = find_key(file, kIncompleteKey); incomplete && incomplete->is<bool>()) {
        backward.incomplete = *incomplete->get_if<bool>();
      }
    });
    read_file(stored, "grad_inputs.pth",
              [&] { backward.grad_inputs = gradient_list(stored.read(CallFile::kGradInputs, pass)); });
    call->backward.push_back(std::move(backward));
  }
}

void refuse_unsupported(const CapturedCall& call) {
  std::vector<std::string> missing = call.meta.unsupported;
  if (missing.empty()) {
    find_unsupported(call.args, &missing);
    find_unsupported(call.kwargs, &missing);
  }
  if (missing.empty()) return;
  std::string text = "an input could not be saved when the call was captured: ";
  for (size_t i = 0; i < missing.size(); ++i) text += (i ? "; " : "") + missing[i];
  throw Error(text);
}

std::string what_was_cut_off(const StoredCall& stored, const CapturedCall& call) {
  const char* const why = " is missing: its program ended while the call was written";
  if (call.is_ours && !stored.has(CallFile::kMeta)) return std::string("cut off: meta.json") + why;
  const auto pass = static_cast<uint32_t>(call.backward.size());
  const bool half =
      !call.from_ditorch && stored.has(CallFile::kGradInputs, pass) != stored.has(CallFile::kGradOutputs, pass);
  return half ? std::string("cut off: half of a backward pass") + why : "";
}

}  // namespace op_tools::replay
