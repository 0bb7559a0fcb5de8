#include "memory/memory_table.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "hooks/backward_pass.h"
#include "memory/memory_hook.h"

namespace op_tools {
namespace {

constexpr size_t kMostPlaces = 50'000;
constexpr const char* kFurtherPlaces = "(further places)";
constexpr int64_t kPeakParts = 256;  // a peak of followed storages is right to this part of it
constexpr size_t kMostSamples = 64;  // of a place, at ends of steps; then every second is dropped
constexpr int64_t kFirstJudged = 8;  // steps
constexpr size_t kMostOverwrites = 1'000;

thread_local MemoryTable::OpenCall* tl_call = nullptr;
thread_local bool tl_in_optimizer = false;

const std::string& text_of(const std::string* text) {
  static const std::string none;
  return text ? *text : none;
}

const void* address_of(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

}  // namespace

const char* to_string(MemoryPhase phase) {
  return phase == MemoryPhase::kForward ? "forward" : phase == MemoryPhase::kBackward ? "backward" : "optimizer";
}

bool is_memory_judged_after(int64_t steps) {
  return steps >= kFirstJudged && std::has_single_bit(static_cast<uint64_t>(steps));
}

void set_in_optimizer(bool running) {
  tl_in_optimizer = running;
}

MemoryPhase current_memory_phase() {
  if (is_in_backward()) return MemoryPhase::kBackward;
  return tl_in_optimizer ? MemoryPhase::kOptimizer : MemoryPhase::kForward;
}

void Account::change(int64_t by_bytes, int64_t by_blocks, uint64_t current_peak) {
  peak_bytes = at(current_peak);
  peak = current_peak;
  bytes += by_bytes;
  blocks += by_blocks;
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
  for (OnDevice& one : on_) {
    if (one.device == device) return one;
  }
  return on_.emplace_back(OnDevice{device});
}

bool MemoryTable::is_new(const OpenCall& call, const MemoryPlace& place) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(call.on_.begin(), call.on_.end(), [&](const OpenCall::OnDevice& one) {
    return place_of_.find(key_of(place, addresses_of(place, one.device, false))) == place_of_.end();
  });
}

void MemoryTable::end(OpenCall& call, MemoryPlace place) {
  if (!std::exchange(call.open_, false)) return;
  // Those that began in it and did not end go with it.
  for (OpenCall* one = tl_call; one != nullptr; one = one->outer_) {
    if (one == &call) tl_call = call.outer_;
  }
  if (!call.any()) return;
  // The names of its functions take milliseconds to find.
  if (call.backtrace_ && is_new(call, place)) place.stack += call.backtrace_->get();
  const std::lock_guard lock(mutex_);
  for (OpenCall::OnDevice& one : call.on_) {
    // Blocks that it had at the peak and has no more were of this place, too.
    one.place = place_locked(place, one.device, false);
    Place& its = places_[one.place];
    const uint64_t peak = devices_[one.device].peak;
    its.account.change(one.account.bytes, one.account.blocks, peak);
    its.account.peak_bytes += one.account.at(peak);
    its.allocations += one.allocations;
    its.allocated_bytes += one.bytes;
    its.last_step = step_;
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
  if (!call) block.place = outside_locked("(no operator)", block.device, false, current_memory_phase());
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

void MemoryTable::overwritten(const Overwrite& one) {
  const OpenCall* const call = current();
  add({one},
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
  const auto found = blocks_.find(report.address);
  if (report.bytes < 0) {
    if (found != blocks_.end() && found->second.device == device) remove_locked(found);
    return;
  }
  Block block;
  block.bytes = static_cast<size_t>(report.bytes);
  block.call = &call;
  block.device = device;
  // A device in CPU memory takes over the blocks there.
  block.exact = found != blocks_.end() && found->second.exact;
  add_locked(report.address, std::move(block));
}

void MemoryTable::follow_locked(const c10::Storage& storage, Block block) {
  const void* const address = address_of(storage);
  if (address == nullptr || storage.nbytes() == 0) return;
  const uint8_t device = device_locked(storage.device());
  auto found = blocks_.find(address);
  if (found != blocks_.end() && !found->second.exact && found->second.storage && found->second.storage->expired()) {
    remove_locked(found);  // freed unseen, and this is another block
    found = blocks_.end();
  }
  block.bytes = storage.nbytes();
  block.device = device;
  if (found != blocks_.end()) {
    Block& there = found->second;
    if (there.exact && there.device == device) {
      if (!there.storage || there.storage->expired()) there.storage = storage.getWeakStorageImpl();
      return;
    }
    block.exact = there.exact;
    block.call = there.call;
    if (there.storage && there.device == device) return;
    if (!block.call && there.device != device) block.place = place_locked(places_[there.place].what, device, false);
  }
  block.storage = storage.getWeakStorageImpl();
  devices_[device].follows_storages = true;
  add_locked(address, std::move(block));
  if (sweeps_.due(blocks_.size(), storage.nbytes())) sweep_locked();
}

void MemoryTable::given(const c10::Storage& storage, bool parameter) {
  const std::lock_guard lock(mutex_);
  const uint8_t device = device_locked(storage.device());
  const auto found = blocks_.find(address_of(storage));
  const bool is_known = found != blocks_.end() && found->second.device == device &&
                        !(found->second.storage && found->second.storage->expired());
  if (!is_known) {
    Block block;
    block.place = outside_locked("(before the tool)", device, parameter);
    follow_locked(storage, std::move(block));
    return;
  }
  Block& block = found->second;
  if (!parameter || block.call || places_[block.place].parameter) return;
  const uint32_t place = place_locked(places_[block.place].what, device, true);
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

void MemoryTable::add(const std::vector<Overwrite>& found, const MemoryPlace& writer) {
  const std::lock_guard lock(mutex_);
  for (const Overwrite& one : found) {
    if (overwrites_.size() >= kMostOverwrites) return;
    OverwriteRow& row = overwrites_.emplace_back();
    row.op = writer.op;
    row.phase = to_string(writer.phase);
    row.module = text_of(writer.module);
    row.line = text_of(writer.line);
    row.step = step_;
    row.side = one.offset < 0 ? "before" : "behind";
    row.bytes = static_cast<int64_t>(one.bytes);
    row.offset = one.offset;
    row.block_bytes = static_cast<int64_t>(one.block_bytes);
    const auto block = blocks_.find(one.address);
    if (block == blocks_.end()) continue;
    const MemoryPlace& maker = block->second.call ? writer : places_[block->second.place].what;
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

MemoryTable::Addresses MemoryTable::addresses_of(const MemoryPlace& what, uint8_t device, bool parameter) {
  const uint32_t mode = parameter ? 2 : what.grad_enabled ? 1 : 0;
  return {std::hash<std::string_view>()(what.op), what.module, what.line,
          (static_cast<uint32_t>(what.phase) << 16) + (uint32_t{device} << 8) + mode};
}

size_t MemoryTable::HashAddresses::operator()(const Addresses& one) const {
  size_t hash = one.op + one.mode;
  for (const void* const part : {one.module, one.line}) {
    hash = (hash ^ reinterpret_cast<uintptr_t>(part)) * 0x9E3779B97F4A7C15U;
  }
  return hash ^ hash >> 32;
}

std::string MemoryTable::key_of(const MemoryPlace& what, const Addresses& addresses) {
  std::string key(what.op);
  for (const std::string* const part : {what.module, what.line}) (key += '\n') += text_of(part);
  return (key += '\n') += std::to_string(addresses.mode);
}

uint32_t MemoryTable::place_locked(const MemoryPlace& what, uint8_t device, bool parameter) {
  const Addresses addresses = addresses_of(what, device, parameter);
  const auto known = place_at_.find(addresses);
  if (known != place_at_.end() && places_[known->second].op == what.op) return known->second;
  std::string key = key_of(what, addresses);
  const auto same = place_of_.find(key);
  if (same == place_of_.end() && places_.size() >= kMostPlaces && what.op != kFurtherPlaces) {
    return outside_locked(kFurtherPlaces, device, parameter);
  }
  const uint32_t place =
      same != place_of_.end() ? same->second : new_place_locked(what, device, parameter, std::move(key));
  place_at_[addresses] = place;
  return place;
}

uint32_t MemoryTable::new_place_locked(const MemoryPlace& what, uint8_t device, bool parameter, std::string key) {
  const auto number = static_cast<uint32_t>(places_.size());
  Place& place = places_.emplace_back();
  place.op = what.op;
  place.what = what;
  place.what.op = place.op;
  place.device = device;
  place.parameter = parameter;
  place.first_step = step_;
  place.samples.resize(samples_);
  place_of_.emplace(std::move(key), number);
  return number;
}

uint32_t MemoryTable::outside_locked(const char* op, uint8_t device, bool parameter, MemoryPhase phase) {
  return place_locked({op, nullptr, nullptr, {}, phase, false}, device, parameter);
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
  const std::string_view op = block.call ? block.call->op_ : places_[block.place].what.op;
  if (device.peak_op != op) device.peak_op = op;
}

void MemoryTable::count_locked(const Block& block, int64_t sign) {
  const int64_t bytes = sign * static_cast<int64_t>(block.bytes);
  if (block.call) {
    OpenCall::OnDevice& its = block.call->on(block.device);
    its.allocations += sign;
    its.bytes += bytes;
  } else {
    Place& owner = places_[block.place];
    owner.allocations += sign;
    owner.allocated_bytes += bytes;
    owner.last_step = step_;
  }
}

void MemoryTable::add_locked(const void* address, Block block) {
  block.step = step_;
  const auto [place, is_new] = blocks_.emplace(address, Block());
  Block& there = place->second;
  const bool moves = !is_new && there.device != block.device && there.exact && block.exact;
  // Else the allocation of the block was counted when it was reported, and its storage is followed from now on.
  const bool counts = is_new || moves || (!there.exact && !block.storage);
  if (!is_new) {
    if (moves) block.step = there.step;
    change_locked(there, -1);
    if (moves) count_locked(there, -1);
  }
  there = std::move(block);
  change_locked(there, +1);
  note_peak_locked(there);
  if (counts) count_locked(there, +1);
  if (!there.call) return;
  there.call->blocks_.push_back(address);
  there.call->any_.store(true, std::memory_order_relaxed);
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
  if (step_ % sample_interval_ != 0) return;
  for (Place& place : places_) place.samples.push_back({place.account.blocks, place.account.bytes});
  ++samples_;
  if (is_memory_judged_after(step_)) {
    const BlocksOfPlaces blocks = blocks_of_places_locked();
    for (size_t i = 0; i < places_.size(); ++i) {
      const Ages ages = ages_of(blocks[i]);
      places_[i].leaked = leaks_locked(places_[i], ages);
      places_[i].leaked_by_bytes = ages.by_bytes();
    }
  }
  if (samples_ < kMostSamples) return;
  for (Place& place : places_) {
    for (size_t i = 0; 2 * i + 1 < samples_; ++i) place.samples[i] = place.samples[2 * i + 1];
    place.samples.resize(samples_ / 2);
  }
  samples_ /= 2;
  sample_interval_ *= 2;
}

MemoryTable::BlocksOfPlaces MemoryTable::blocks_of_places_locked() const {
  BlocksOfPlaces blocks(places_.size());
  for (const auto& block : blocks_) {
    if (!block.second.call) blocks[block.second.place].push_back(&block);
  }
  return blocks;
}

MemoryTable::Ages MemoryTable::ages_of(const std::vector<const Blocks::value_type*>& blocks) {
  std::vector<uint32_t> births;
  Ages ages;
  for (const auto* block : blocks) {
    births.push_back(block->second.step);
    ages.remade_steps = std::max<int64_t>(ages.remade_steps, block->second.remade_steps);
  }
  std::sort(births.begin(), births.end());
  ages.birth_steps = std::unique(births.begin(), births.end()) - births.begin();
  return ages;
}

std::optional<double> MemoryTable::growth_locked(const Place& place, bool by_bytes) const {
  if (place.samples.size() < kFewestSteps) return std::nullopt;
  const auto measure = [&](size_t i) { return by_bytes ? place.samples[i].bytes : place.samples[i].blocks; };
  const size_t last = place.samples.size() - 1, from = (place.samples.size() + 1) / 2 - 1;
  size_t rises = 0, last_rise = 0;
  for (size_t i = from + 1; i <= last; ++i) {
    if (measure(i) < measure(i - 1)) return std::nullopt;
    if (measure(i) == measure(i - 1)) continue;
    ++rises;
    last_rise = i;
  }
  if (rises < 2 || last_rise <= (from + last) / 2) return std::nullopt;
  return static_cast<double>(place.samples[last].bytes - place.samples[from].bytes) /
         static_cast<double>((last - from) * sample_interval_);
}

// A leak grows until the end, and holds blocks that were allocated in many steps, or made of these. Memory that a
// program allocates once (parameters, an optimizer's state, a cache) does not grow in the second half; memory that it
// allocates anew in each step is of a single step.
bool MemoryTable::leaks_locked(const Place& place, const Ages& ages) const {
  if (ages.steps() < 3 || !growth_locked(place, ages.by_bytes())) return false;
  const MemoryTable::Place::Sample& last = place.samples.back();
  // Memory that was freed since was held for a while, not for ever.
  return ages.by_bytes() ? 2 * place.account.bytes > last.bytes : 2 * place.account.blocks > last.blocks;
}

void MemoryTable::judge_locked(const Place& place, const Ages& ages, MemoryRow* row) const {
  row->birth_steps = ages.steps();
  const bool leaks_now = leaks_locked(place, ages);
  const auto growth = growth_locked(place, leaks_now ? ages.by_bytes() : place.leaked_by_bytes);
  // It leaked, and grew until the last step: then the function returned whose variable held it.
  row->leaks = leaks_now || (place.leaked && growth);
  row->growth = growth.value_or(0);
}

MemoryRow MemoryTable::row_locked(const Place& place) const {
  MemoryRow row;
  const DeviceState& device = devices_[place.device];
  row.device = device.device.str();
  row.op = place.what.op;
  row.phase = to_string(place.what.phase);
  row.module = text_of(place.what.module);
  row.line = text_of(place.what.line);
  row.kind = place.parameter                               ? "parameter"
             : place.what.phase == MemoryPhase::kOptimizer ? "optimizer"
             : place.what.grad_enabled                     ? "activation"  // also those that backward computes again
             : place.what.phase == MemoryPhase::kBackward  ? "gradient"
                                                           : "other";
  row.alive = place.account.blocks;
  row.alive_bytes = place.account.bytes;
  row.peak_bytes = place.account.at(device.peak);
  row.allocations = place.allocations;
  row.allocated_bytes = place.allocated_bytes;
  row.first_step = place.first_step;
  row.last_step = place.last_step;
  row.freed_by = place.freed_by;
  row.stack = place.what.stack;
  return row;
}

MemoryTable::Snapshot MemoryTable::snapshot(bool cpu) {
  Snapshot all;
  const std::lock_guard lock(mutex_);
  sweep_locked();
  cpu = cpu || std::all_of(devices_.begin(), devices_.end(), [](const auto& one) { return one.device.is_cpu(); });
  const auto is_wanted = [&](uint8_t device) { return cpu || !devices_[device].device.is_cpu(); };
  const BlocksOfPlaces blocks = blocks_of_places_locked();
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < places_.size(); ++i) {
    if (is_wanted(places_[i].device)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t one, uint32_t other) {
    return places_[one].account.bytes > places_[other].account.bytes;
  });
  for (const uint32_t number : order) {
    for (const auto* block : blocks[number]) {
      if (all.blocks.size() >= kMostBlocks) break;
      all.blocks.push_back({static_cast<int64_t>(all.rows.size()), reinterpret_cast<int64_t>(block->first),
                            static_cast<int64_t>(block->second.bytes), block->second.step,
                            devices_[block->second.device].device.str()});
    }
    MemoryRow row = row_locked(places_[number]);
    judge_locked(places_[number], ages_of(blocks[number]), &row);
    all.rows.push_back(std::move(row));
  }
  for (const DeviceState& one : devices_) {
    if (!cpu && one.device.is_cpu()) continue;
    all.devices.push_back({one.device.str(), one.bytes, one.peak_bytes, one.peak_step, one.peak_op, one.reports,
                           one.told_bytes, one.told_peak_bytes, one.reserved_bytes, one.reserved_peak_bytes,
                           one.unused_bytes});
  }
  all.overwrites = overwrites_;
  all.steps = step_;
  return all;
}

size_t MemoryTable::overwrites() const {
  const std::lock_guard lock(mutex_);
  return overwrites_.size();
}

}  // namespace op_tools
