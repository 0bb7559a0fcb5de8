#include "runs/run_part.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hooks/op_traits.h"
#include "record/recording_file.h"
#include "runs/call_keys.h"

namespace op_tools {
namespace {

// Path, header, and whether it is whole.
Recording without_rows(const Recording& run) {
  Recording facts;
  facts.path = run.path;
  facts.header = run.header;
  facts.complete = run.complete;
  facts.damage = run.damage;
  return facts;
}

struct CallsOfSteps {
  Recording part;                 // without values
  std::vector<uint32_t> values;   // by number in the part: the number in the run
  std::vector<uint32_t> call_of;  // by number in the run: the number in the part, or kNoCall
};

// `before`: the rows that `run` does not have, though its numbers count them.
CallsOfSteps calls_of_steps(const Recording& run, const RowBlock& before, int64_t first, int64_t end) {
  CallsOfSteps steps{without_rows(run), {}, std::vector<uint32_t>(before.calls + run.calls.size(), kNoCall)};
  Recording& part = steps.part;
  part.strings = run.strings;
  part.lists = run.lists;
  std::vector<uint32_t> value_of(before.values + run.values.size(), kNoCall);  // in the part
  for (uint32_t number = 0; number < run.calls.size(); ++number) {
    RecordedCall call = run.calls[number];
    if (call.step < first || call.step >= end) continue;
    steps.call_of[before.calls + number] = static_cast<uint32_t>(part.calls.size());
    const uint32_t first_use = call.first_use;
    call.first_use = static_cast<uint32_t>(part.uses.size());
    for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
      RecordedUse use = run.uses[first_use - before.uses + i];
      uint32_t& value = value_of[use.value];
      if (value == kNoCall) {
        value = static_cast<uint32_t>(steps.values.size());
        steps.values.push_back(use.value);
      }
      use.value = value;
      part.uses.push_back(use);
    }
    part.calls.push_back(call);
  }
  return steps;
}

// A value as it is in a part. `producer`: the number of its maker there, kNoCall if it is older.
RecordedValue value_in_part(RecordedValue value, uint32_t producer, bool is_unwritten) {
  const bool is_older = value.producer != kNoCall && producer == kNoCall;
  value.producer = producer;
  if (is_older && value.origin == Origin::kCall) value.origin = Origin::kUnknown;
  if (is_older && is_unwritten) {
    value.known = false;
    value.hash = 0;
  }
  return value;
}

uint32_t number_of(const std::pair<uint32_t, RecordedValue>& value) {
  return value.first;
}

}  // namespace

Recording steps_of(const Recording& run, int64_t first, int64_t end) {
  CallsOfSteps steps = calls_of_steps(run, RowBlock(), first, end);
  const std::vector<bool> unwritten = unwritten_values(run);
  steps.part.values.reserve(steps.values.size());
  for (const uint32_t number : steps.values) {
    const RecordedValue& value = run.values[number];
    const uint32_t producer = value.producer == kNoCall ? kNoCall : steps.call_of[value.producer];
    steps.part.values.push_back(value_in_part(value, producer, unwritten[number]));
  }
  return std::move(steps.part);
}

RecordingParts::RecordingParts(const Recording& run, const std::vector<int64_t>& ends) : whole_(without_rows(run)) {
  whole_.strings = run.strings;
  whole_.lists = run.lists;
  whole_.blocks = run.blocks;
  int64_t first = std::numeric_limits<int64_t>::min();
  for (size_t part = 0; part <= ends.size(); ++part) {
    const int64_t end = part < ends.size() ? ends[part] : std::numeric_limits<int64_t>::max();
    parts_.push_back({first, end, run.blocks.size(), 0, {}});
    first = end;
  }
  find_blocks(run);
  find_older_values(run);
}

size_t RecordingParts::part_of(int64_t step) const {
  const auto is_before = [](int64_t number, const Part& part) { return number < part.end; };
  const auto part = std::upper_bound(parts_.begin(), parts_.end() - 1, step, is_before);
  return static_cast<size_t>(part - parts_.begin());
}

// Those that have the calls of each part, and the tensors of these calls. Threads are in different steps at a time, so
// blocks may belong to several parts.
void RecordingParts::find_blocks(const Recording& run) {
  size_t of_call = 0, of_use = 0;
  const auto advance = [&](size_t& block, uint32_t RowBlock::*rows, uint32_t number) {
    while (block > 0 && run.blocks[block].*rows > number) --block;
    while (block + 1 < run.blocks.size() && run.blocks[block + 1].*rows <= number) ++block;
  };
  for (uint32_t number = 0; number < run.calls.size(); ++number) {
    const RecordedCall& call = run.calls[number];
    advance(of_call, &RowBlock::calls, number);
    if (call.inputs + call.outputs > 0) advance(of_use, &RowBlock::uses, call.first_use);
    Part& part = parts_[part_of(call.step)];
    part.begin_block = std::min({part.begin_block, of_call, of_use});
    part.end_block = std::max(part.end_block, of_call);
  }
}

// Values of a part's calls that stand in earlier blocks, or were made by a call of another part.
void RecordingParts::find_older_values(const Recording& run) {
  const std::vector<bool> unwritten = unwritten_values(run);
  std::vector<size_t> seen_in(run.values.size(), parts_.size());  // by value: the last part that has it
  for (const RecordedCall& call : run.calls) {
    const size_t number_of_part = part_of(call.step);
    Part& part = parts_[number_of_part];
    const RowBlock& begin = run.blocks[part.begin_block];
    for (uint32_t i = 0; i < call.inputs + call.outputs; ++i) {
      const uint32_t number = run.uses[call.first_use + i].value;
      if (std::exchange(seen_in[number], number_of_part) == number_of_part) continue;
      const RecordedValue& value = run.values[number];
      const bool is_of_other = value.producer != kNoCall && part_of(run.calls[value.producer].step) != number_of_part;
      if (number >= begin.values && !is_of_other) continue;
      part.older.emplace_back(number, is_of_other ? value_in_part(value, kNoCall, unwritten[number]) : value);
    }
  }
  for (Part& part : parts_) {
    std::ranges::sort(part.older, {}, number_of);
    const auto same = [](const auto& value, const auto& other) { return value.first == other.first; };
    part.older.erase(std::unique(part.older.begin(), part.older.end(), same), part.older.end());
    part.older.shrink_to_fit();
  }
}

Recording RecordingParts::read(size_t number) const {
  const Part& part = parts_.at(number);
  Recording rows = without_rows(whole_);
  if (part.begin_block > part.end_block) return rows;
  const RowBlock& begin = whole_.blocks[part.begin_block];
  rows.strings.assign(whole_.strings.begin(), whole_.strings.begin() + begin.strings);
  rows.lists.assign(whole_.lists.begin(), whole_.lists.begin() + begin.lists);
  rows = read_rows(whole_.path, begin, whole_.blocks[part.end_block].end, std::move(rows));
  rows.header = whole_.header;
  CallsOfSteps steps = calls_of_steps(rows, begin, part.first, part.end);
  steps.part.values.reserve(steps.values.size());
  for (const uint32_t value_number : steps.values) {
    const auto older = std::ranges::lower_bound(part.older, value_number, {}, number_of);
    const bool is_older = older != part.older.end() && older->first == value_number;
    const RecordedValue& value = is_older ? older->second : rows.values[value_number - begin.values];
    const uint32_t producer = value.producer == kNoCall ? kNoCall : steps.call_of[value.producer];
    steps.part.values.push_back(value_in_part(value, producer, false));
  }
  return std::move(steps.part);
}

std::map<int64_t, size_t> calls_by_step(const Recording& run) {
  std::map<int64_t, size_t> counts;
  for (const RecordedCall& call : run.calls) ++counts[call.step];
  return counts;
}

std::string first_collective(const Recording& run, int64_t step) {
  for (const RecordedCall& call : run.calls) {
    if (call.step >= step && is_collective(run.string(call.op))) return std::string(run.string(call.op));
  }
  return "";
}

}  // namespace op_tools
