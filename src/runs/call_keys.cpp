#include "runs/call_keys.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "hooks/op_traits.h"
#include "runs/value_difference.h"

namespace op_tools {
namespace {

// Tensors of fewer elements have equal bits by chance.
constexpr int64_t kTelling = 8;

uint64_t mixed(uint64_t key, uint64_t more) {
  key = (key ^ more) * 0x9E3779B97F4A7C15ULL;
  key ^= key >> 32;
  key *= 0xD6E8FEB86659FD93ULL;
  return key ^ (key >> 29);
}

// Numbers of strings and lists are those of a file: keys are made of their meanings.
struct Contents {
  std::vector<uint64_t> strings, ops, lists;

  explicit Contents(const Recording& run) {
    const std::hash<std::string_view> of;
    for (const std::string& text : run.strings) {
      strings.push_back(of(text));
      ops.push_back(of(plain_name(text)));
    }
    for (const std::vector<int64_t>& list : run.lists) {
      uint64_t key = list.size();
      for (const int64_t size : list) key = mixed(key, static_cast<uint64_t>(size));
      lists.push_back(key);
    }
  }
};

uint64_t shapes_key(const Recording& run, const Contents& contents, c10::ArrayRef<RecordedUse> uses, uint64_t key) {
  key = mixed(key, uses.size());
  for (const RecordedUse& use : uses) {
    const RecordedValue& value = run.values[use.value];
    key = mixed(key, contents.lists[value.shape] + static_cast<uint64_t>(dtype_class(value.dtype)));
  }
  return key;
}

uint64_t exact_key(const Recording& run, const std::vector<bool>& unwritten, const RecordedCall& call, uint64_t key) {
  bool telling = false;
  for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
    const uint32_t number = run.uses[call.first_use + i].value;
    const RecordedValue& value = run.values[number];
    if (value.hash == 0 || unwritten[number]) return 0;
    key = mixed(key, value.hash);
    telling = telling || (value.known && value.min != value.max && numel_of(run, value) >= kTelling);
  }
  return telling ? key : 0;
}

bool writes_inputs(const Recording& run, const RecordedCall& call) {
  const auto outputs = run.outputs(call);
  return std::any_of(outputs.begin(), outputs.end(),
                     [&](const RecordedUse& use) { return run.string(use.place).starts_with(kWrittenPlace); });
}

// The call writes this input of it.
bool is_written(const Recording& run, const RecordedCall& call, const RecordedUse& input) {
  const auto outputs = run.outputs(call);
  return std::any_of(outputs.begin(), outputs.end(), [&](const RecordedUse& use) {
    const std::string_view place = run.string(use.place);
    return place.starts_with(kWrittenPlace) && place.substr(kWrittenPlace.size()) == run.string(input.place);
  });
}

// How many elements of the memory lie between the first and the last of a tensor, both counted.
int64_t extent_of(const Recording& run, const RecordedValue& value) {
  const auto sizes = run.list(value.shape), strides = run.list(value.stride);
  if (sizes.size() != strides.size()) return std::numeric_limits<int64_t>::max();  // it has no strides
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last + 1;
}

// Other sizes and strides reach no further than those before: they show memory that was there already.
bool reaches_further(const Recording& run, const RecordedCall& call) {
  if (call.inputs == 0 || call.outputs == 0) return true;
  return extent_of(run, run.values[run.outputs(call)[0].value]) > extent_of(run, run.values[run.inputs(call)[0].value]);
}

// What the table of traits says about an operator's memory. Asked once for each name of a recording.
struct MemoryTraits {
  bool gives_data, is_uninitialized, shows_unwritten, shows_storage, takes_workspace, changes_in_place, overwrites;
  int workspace, open_from;  // -1: none

  explicit MemoryTraits(std::string_view base)
      : gives_data(has_trait(base, OpTrait::kGivesData)),
        is_uninitialized(has_trait(base, OpTrait::kUninitializedResult)),
        shows_unwritten(has_trait(base, OpTrait::kShowsUnwrittenMemory)),
        shows_storage(has_trait(base, OpTrait::kShowsStorage)),
        takes_workspace(has_trait(base, OpTrait::kTakesWorkspace)),
        changes_in_place(has_trait(base, OpTrait::kChangesInPlace)),
        overwrites(base == "copy_"),
        workspace(workspace_of(base)) {
    const OpFamily* const open = family_of(base, OpTrait::kOpenResult);  // states of generators that nothing drew from
    open_from = open ? open->place : -1;
  }
};

}  // namespace

const RecordedUse* made_as(const Recording& run, const RecordedValue& value) {
  if (value.origin != Origin::kCall || value.producer >= run.calls.size()) return nullptr;
  const auto outputs = run.outputs(run.calls[value.producer]);
  return value.output < outputs.size() ? &outputs[value.output] : nullptr;
}

const RecordedUse* first_made_as(const Recording& run, uint32_t value) {
  const RecordedUse* const original = made_as(run, run.values[value]);
  return original && original->value != value ? original : nullptr;
}

std::vector<bool> unwritten_values(const Recording& run) {
  std::vector<bool> unwritten(run.values.size(), false);
  for (size_t i = 0; i < run.values.size(); ++i) {
    const WrittenPart written = run.values[i].written;
    unwritten[i] = written == WrittenPart::kNone || written == WrittenPart::kUnknown;
  }
  std::vector<bool> unread_storage(run.values.size(), false);  // shown by a call, and no call's input yet
  std::vector<std::optional<MemoryTraits>> traits_of(run.strings.size());
  for (const RecordedCall& call : run.calls) {
    std::optional<MemoryTraits>& known = traits_of[call.op];
    if (!known) known.emplace(base_name(run.string(call.op)));
    const MemoryTraits& traits = *known;
    for (const RecordedUse& use : run.inputs(call)) {
      const RecordedValue& value = run.values[use.value];
      // copy.deepcopy of a tensor copies into the bytes of a new storage: its first reader writes over them.
      const bool is_first_read = unread_storage[use.value];
      unread_storage[use.value] = false;
      if (is_first_read && traits.overwrites && &use == run.inputs(call).begin()) unwritten[use.value] = true;
      if (traits.gives_data) {
        unwritten[use.value] = false;
        if (const RecordedUse* const original = made_as(run, value)) unwritten[original->value] = false;
      } else if (const RecordedUse* const original = made_as(run, value); original && unwritten[original->value]) {
        unwritten[use.value] = true;
      }
    }
    // The recorder knows of most such memory which of its elements were written.
    const auto shows_some = [&](const RecordedUse& use) {
      return unwritten[use.value] || run.values[use.value].written == WrittenPart::kSome;
    };
    bool shows = traits.is_uninitialized || (traits.shows_unwritten && reaches_further(run, call));
    // A call that writes such memory makes it known; a call that only reads it (a view), or makes new elements of it,
    // shows it.
    const bool makes_known = !traits.changes_in_place && writes_inputs(run, call);
    if (!shows && !traits.takes_workspace && !makes_known) {
      for (const RecordedUse& use : run.inputs(call)) shows = shows || shows_some(use);
    } else if (makes_known && !traits.takes_workspace) {  // of that memory, or of the call's other inputs
      for (const RecordedUse& use : run.inputs(call)) {
        shows = shows || (shows_some(use) && !is_written(run, call, use));
      }
    }
    const auto outputs = run.outputs(call);
    if (traits.shows_storage && !outputs.empty()) unread_storage[outputs[0].value] = true;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const WrittenPart written = run.values[outputs[i].value].written;
      if (written != WrittenPart::kNotWatched) {
        const bool is_known = written == WrittenPart::kAll || written == WrittenPart::kSome;
        if (is_known && !(makes_known && shows)) continue;  // a view shows the elements of a part
        unwritten[outputs[i].value] = true;
        continue;
      }
      const bool is_unwritten = shows || static_cast<int>(i) == traits.workspace ||
                                (traits.open_from >= 0 && static_cast<int>(i) >= traits.open_from);
      // Without elements there is nothing to write: torch.cat([torch.tensor([]), x]) is all of x.
      if (is_unwritten && numel_of(run, run.values[outputs[i].value]) > 0) unwritten[outputs[i].value] = true;
    }
  }
  return unwritten;
}

bool is_moved_copy(const Recording& run, const RecordedCall& call) {
  if (call.inputs != 1 || call.outputs != 1 || call.error != 0) return false;
  const RecordedValue &in = run.values[run.inputs(call)[0].value], &out = run.values[run.outputs(call)[0].value];
  return in.dtype == out.dtype && run.list(in.shape) == run.list(out.shape) &&
         has_trait(base_name(run.string(call.op)), OpTrait::kMoves);
}

bool only_moves(const Recording& run, const RecordedCall& call) {
  if (!is_moved_copy(run, call)) return false;
  const RecordedValue &in = run.values[run.inputs(call)[0].value], &out = run.values[run.outputs(call)[0].value];
  return in.hash == out.hash && (in.hash != 0 || in.device != out.device);
}

std::vector<uint32_t> moved_from(const Recording& run) {
  std::vector<uint32_t> sources(run.values.size());
  std::iota(sources.begin(), sources.end(), 0);
  for (const RecordedCall& call : run.calls) {
    if (only_moves(run, call)) sources[run.outputs(call)[0].value] = sources[run.inputs(call)[0].value];
  }
  return sources;
}

std::string_view plain_name(std::string_view op) {
  const std::string_view base = base_name(op);
  const size_t first = base.find_first_not_of('_');
  return first == std::string_view::npos ? base : base.substr(first, base.find_last_not_of('_') + 1 - first);
}

DtypeClass dtype_class(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Bool) return DtypeClass::kBool;
  if (c10::isFloatingType(dtype)) return DtypeClass::kFloating;
  if (c10::isComplexType(dtype)) return DtypeClass::kComplex;
  return c10::isIntegralType(dtype, false) ? DtypeClass::kInteger : DtypeClass::kOther;
}

CallKeys call_keys(const Recording& run) {
  const Contents contents(run);
  const std::vector<bool> unwritten = unwritten_values(run);
  CallKeys keys;
  const size_t count = run.calls.size();
  for (auto* const list : {&keys.exact, &keys.placed, &keys.plain, &keys.loose}) list->reserve(count);
  for (const RecordedCall& call : run.calls) {
    const uint64_t op = contents.ops[call.op];
    const uint64_t plain =
        shapes_key(run, contents, run.outputs(call), shapes_key(run, contents, run.inputs(call), op));
    keys.exact.push_back(exact_key(run, unwritten, call, op));
    keys.plain.push_back(plain);
    uint64_t placed = mixed(mixed(plain, contents.strings[call.module]), call.module_call);
    // A gradient has a name where it was not seen to be made: the engine takes some as they are and copies others.
    for (const RecordedUse& use : run.inputs(call)) {
      const RecordedValue& value = run.values[use.value];
      placed = mixed(placed, contents.strings[value.origin == Origin::kGradient ? 0 : value.name]);
    }
    keys.placed.push_back(placed);
    keys.loose.push_back(op);
  }
  return keys;
}

}  // namespace op_tools
