#include "memory/memory_table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "memory/memory_hook.h"

namespace op_tools {
namespace {

constexpr int64_t kPeakParts = 256;  // a peak of followed storages is right to this part of it
constexpr int64_t kFirstJudged = 8;  // steps
constexpr size_t kMostOverwrites = 1'000;

thread_local MemoryTable::OpenCall* tl_call = nullptr;
const void* address_of(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

}  // namespace

bool is_memory_judged_after(int64_t steps) {
  return steps >= kFirstJudged && std::has_single_bit(static_cast<uint64_t>(steps));
}

MemoryTable::OpenCall::OpenCall(MemoryTable& table, std::string_view op) : table_(table), op_(op), outer_(tl_call) {
  tl_call = this;
}

MemoryTable::OpenCall::~OpenCall() {
  if (open_) table_.end(*this, {op_, nullptr, nullptr, {}, current_memory_phase(), false});
}

void MemoryTable::OpenCall::takes(const c10::Storage& storage) {
  if (const void* const address = address_of(storage)) inputs_.push_back(address);
}

MemoryTable::OpenCall::OnDevice& MemoryTable::OpenCall::on(uint8_t device) {
  for (OnDevice& known : on_) {
    if (known.device == device) return known;
  }
  return on_.emplace_back(OnDevice{device});
}

bool MemoryTable::is_new(const OpenCall& call, const MemoryPlace& place) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(call.on_.begin(), call.on_.end(),
                     [&](const OpenCall::OnDevice& part) { return !places_.has(place, part.device); });
}

void MemoryTable::end(OpenCall& call, MemoryPlace place) {
  if (!std::exchange(call.open_, false)) return;
  // Those that began in it and did not end go with it.
  for (OpenCall* open = tl_call; open != nullptr; open = open->outer_) {
    if (open == &call) tl_call = call.outer_;
  }
  if (!call.any()) return;
  // The names of its functions take milliseconds to find.
  if (call.backtrace_ && is_new(call, place)) place.stack += call.backtrace_->get();
  const std::lock_guard lock(mutex_);
  for (OpenCall::OnDevice& part : call.on_) {
    // Blocks that it had at the peak and has no more were of this place, too.
    part.place = places_.number_of(place, part.device, false, step_);
    PlaceFigures& figures = places_[part.place];
    const uint64_t peak = devices_[part.device].peak;
    figures.account.change(part.account.bytes, part.account.blocks, peak);
    figures.account.peak_bytes += part.account.at(peak);
    figures.allocations += part.allocations;
    figures.allocated_bytes += part.bytes;
    figures.last_step = step_;
  }
  for (const void* const address : call.blocks_) {
    const auto block = blocks_.find(address);
    if (block == blocks_.end() || block->second.call != &call) continue;
    block->second.place = call.on(block->second.device).place;
    block->second.remade_steps = remade_steps_locked(call, block->second.place);
    block->second.call = nullptr;
    // Nothing would say when it is freed.
    if (!block->second.exact && !block->second.storage) remove_locked(block);
  }
}

uint32_t MemoryTable::remade_steps_locked(const OpenCall& call, uint32_t place) const {
  uint32_t steps = 0;
  if (places_[place].account.blocks <= 1) return steps;  // the new block is alone
  for (const void* const address : call.inputs_) {
    const auto input = blocks_.find(address);
    if (input == blocks_.end() || input->second.call || input->second.place != place) continue;
    steps = std::max(steps, input->second.remade_steps + (input->second.step == step_ ? 0 : 1));
  }
  return steps;
}

MemoryTable::OpenCall* MemoryTable::current() const {
  OpenCall* call = tl_call;
  while (call != nullptr && &call->table_ != this) call = call->outer_;
  return call;
}

void MemoryTable::allocated(const void* address, size_t bytes) {
  OpenCall* const call = current();
  if (call && backtrace_ && !call->backtrace_) call->backtrace_ = c10::get_lazy_backtrace(/*frames_to_skip=*/2);
  const std::lock_guard lock(mutex_);
  Block block;
  block.bytes = bytes;
  block.exact = true;
  block.call = call;
  block.device = device_locked(c10::kCPU);
  devices_[block.device].reports = true;
  if (!call) block.place = places_.outside("(no operator)", block.device, false, current_memory_phase(), step_);
  add_locked(address, std::move(block));
}

void MemoryTable::freed(const void* address) {
  const OpenCall* const call = current();
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) return;
  if (!block->second.call) {
    std::string& by = places_[block->second.place].freed_by;
    const std::string_view op = call ? call->op_ : std::string_view("between operators");
    if (by != op) by = op;
  }
  remove_locked(block);
}

void MemoryTable::overwritten(const Overwrite& overwrite) {
  const OpenCall* const call = current();
  add({overwrite},
      {call ? call->op_ : std::string_view("(no operator)"), nullptr, nullptr, {}, current_memory_phase(), false});
}

void MemoryTable::reported(OpenCall& call, const MemoryReport& report) {
  if (report.device.is_cpu()) return;  // the CPU's allocator told
  const std::lock_guard lock(mutex_);
  const uint8_t device = device_locked(report.device);
  DeviceState& state = devices_[device];
  state.reports = true;
  state.told_bytes = report.total;
  state.told_peak_bytes = std::max(state.told_peak_bytes.value_or(0), report.total);
  if (report.reserved > 0 && report.reserved >= report.total) {  // else the allocator does not tell
    state.reserved_bytes = report.reserved;
    if (report.reserved > state.reserved_peak_bytes.value_or(0)) {
      state.reserved_peak_bytes = report.reserved;
      state.unused_bytes = report.reserved - report.total;
    }
  }
  const auto known = blocks_.find(report.address);
  if (report.bytes < 0) {
    if (known != blocks_.end() && known->second.device == device) remove_locked(known);
    return;
  }
  Block block;
  block.bytes = static_cast<size_t>(report.bytes);
  block.call = &call;
  block.device = device;
  // A device in CPU memory takes over the blocks there.
  block.exact = known != blocks_.end() && known->second.exact;
  add_locked(report.address, std::move(block));
}

void MemoryTable::follow_locked(const c10::Storage& storage, Block block) {
  const void* const address = address_of(storage);
  if (address == nullptr || storage.nbytes() == 0) return;
  const uint8_t device = device_locked(storage.device());
  auto known = blocks_.find(address);
  if (known != blocks_.end() && !known->second.exact && known->second.storage && known->second.storage->expired()) {
    remove_locked(known);  // freed unseen, and this is another block
    known = blocks_.end();
  }
  block.bytes = storage.nbytes();
  block.device = device;
  if (known != blocks_.end()) {
    Block& before = known->second;
    if (before.exact && before.device == device) {
      if (!before.storage || before.storage->expired()) before.storage = storage.getWeakStorageImpl();
      return;
    }
    block.exact = before.exact;
    block.call = before.call;
    if (before.storage && before.device == device) return;
    if (!block.call && before.device != device) {
      block.place = places_.number_of(places_[before.place].place, device, false, step_);
    }
  }
  block.storage = storage.getWeakStorageImpl();
  devices_[device].follows_storages = true;
  add_locked(address, std::move(block));
  if (sweeps_.due(blocks_.size(), storage.nbytes())) sweep_locked();
}

void MemoryTable::takes(const c10::Storage& storage, bool parameter) {
  const std::lock_guard lock(mutex_);
  const uint8_t device = device_locked(storage.device());
  const auto known = blocks_.find(address_of(storage));
  const bool is_known = known != blocks_.end() && known->second.device == device &&
                        !(known->second.storage && known->second.storage->expired());
  if (!is_known) {
    Block block;
    block.place = places_.outside("(before the tool)", device, parameter, MemoryPhase::kForward, step_);
    follow_locked(storage, std::move(block));
    return;
  }
  Block& block = known->second;
  if (!parameter || block.call || places_[block.place].parameter) return;
  const uint32_t place = places_.number_of(places_[block.place].place, device, true, step_);
  change_locked(block, -1);
  count_locked(block, -1);
  block.place = place;
  change_locked(block, +1);
  count_locked(block, +1);
}

void MemoryTable::returned(OpenCall& call, const c10::Storage& storage) {
  const std::lock_guard lock(mutex_);
  Block block;
  block.call = &call;
  follow_locked(storage, std::move(block));
}

void MemoryTable::add(const std::vector<Overwrite>& overwrites, const MemoryPlace& writer) {
  const std::lock_guard lock(mutex_);
  for (const Overwrite& overwrite : overwrites) {
    if (overwrites_.size() >= kMostOverwrites) return;
    OverwriteRow& row = overwrites_.emplace_back();
    row.op = writer.op;
    row.phase = to_string(writer.phase);
    row.module = text_of(writer.module);
    row.line = text_of(writer.line);
    row.step = step_;
    row.operators = static_cast<int64_t>(overwrite.operators);
    row.side = overwrite.offset < 0 ? "before" : "behind";
    row.bytes = static_cast<int64_t>(overwrite.bytes);
    row.offset = overwrite.offset;
    row.block_bytes = static_cast<int64_t>(overwrite.block_bytes);
    const auto block = blocks_.find(overwrite.address);
    if (block == blocks_.end()) continue;
    const MemoryPlace& maker = block->second.call ? writer : places_[block->second.place].place;
    row.made_by = maker.op;
    row.made_at = text_of(maker.line);
  }
}

uint8_t MemoryTable::device_locked(c10::Device device) {
  if (device.is_cpu()) device = c10::Device(c10::kCPU);
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].device == device) return static_cast<uint8_t>(i);
  }
  devices_.emplace_back().device = device;
  return static_cast<uint8_t>(devices_.size() - 1);
}

Account& MemoryTable::account_locked(const Block& block) {
  return block.call ? block.call->on(block.device).account : places_[block.place].account;
}

void MemoryTable::change_locked(const Block& block, int64_t sign) {
  DeviceState& device = devices_[block.device];
  const int64_t bytes = sign * static_cast<int64_t>(block.bytes);
  account_locked(block).change(bytes, sign, device.peak);
  device.bytes += bytes;
}

void MemoryTable::note_peak_locked(const Block& block) {
  DeviceState& device = devices_[block.device];
  if (device.bytes <= device.peak_bytes) return;
  if (device.follows_storages) {
    // A sweep looks at every block: not for each allocation of a program that climbs to its peak.
    if (device.bytes <= device.peak_bytes + device.peak_bytes / kPeakParts) return;
    sweep_locked();
    if (device.bytes <= device.peak_bytes) return;
  }
  device.peak_bytes = device.bytes;
  ++device.peak;  // of all accounts the present figures
  device.peak_step = step_;
  const std::string_view op = block.call ? block.call->op_ : places_[block.place].place.op;
  if (device.peak_op != op) device.peak_op = op;
}

void MemoryTable::count_locked(const Block& block, int64_t sign) {
  const int64_t bytes = sign * static_cast<int64_t>(block.bytes);
  if (block.call) {
    OpenCall::OnDevice& part = block.call->on(block.device);
    part.allocations += sign;
    part.bytes += bytes;
  } else {
    PlaceFigures& owner = places_[block.place];
    owner.allocations += sign;
    owner.allocated_bytes += bytes;
    owner.last_step = step_;
  }
}

void MemoryTable::add_locked(const void* address, Block block) {
  block.step = step_;
  const auto [place, is_new] = blocks_.emplace(address, Block());
  Block& known = place->second;
  const bool moves = !is_new && known.device != block.device && known.exact && block.exact;
  // Else the allocation of the block was counted when it was reported, and its storage is followed from now on.
  const bool counts = is_new || moves || (!known.exact && !block.storage);
  if (!is_new) {
    if (moves) block.step = known.step;
    change_locked(known, -1);
    if (moves) count_locked(known, -1);
  }
  known = std::move(block);
  change_locked(known, +1);
  note_peak_locked(known);
  if (counts) count_locked(known, +1);
  if (!known.call) return;
  known.call->blocks_.push_back(address);
  known.call->any_.store(true, std::memory_order_relaxed);
}

void MemoryTable::remove_locked(Blocks::iterator block) {
  change_locked(block->second, -1);
  blocks_.erase(block);
}

void MemoryTable::sweep_locked() {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    if (block->second.storage && block->second.storage->expired()) {
      change_locked(block->second, -1);
      block = blocks_.erase(block);
    } else {
      ++block;
    }
  }
  sweeps_.done(blocks_.size());
}

void MemoryTable::step_ended(int64_t next) {
  const std::lock_guard lock(mutex_);
  sweep_locked();
  step_ = static_cast<uint32_t>(next);
  if (!places_.sample(step_)) return;
  if (is_memory_judged_after(step_)) {
    const BlocksOfPlaces blocks = blocks_of_places_locked();
    for (uint32_t i = 0; i < places_.size(); ++i) {
      const BlockAges ages = ages_of(blocks[i]);
      PlaceHistory& history = places_[i].history;
      history.leaked = is_leaking(history, places_.sample_interval(), ages, places_[i].now());
      history.leaked_by_bytes = ages.by_bytes();
    }
  }
  places_.thin_out_samples();
}

size_t MemoryTable::overwrites() const {
  const std::lock_guard lock(mutex_);
  return overwrites_.size();
}

}  // namespace op_tools
