#include "blackbox/kept_inputs.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "calls/call_meta.h"
#include "calls/capture_paths.h"
#include "calls/random_state.h"
#include "calls/saved_call.h"
#include "calls/snapshot.h"
#include "pth/pth.h"

namespace op_tools {
namespace {

struct TooLarge {};

// Files of a call, side by side in a place of the file.
class PlaceStore final : public CallStore {
 public:
  PlaceStore(char* memory, size_t size) : begin_(memory), at_(memory), end_(memory + size) {}

  std::string write(const CallKey& /*key*/, CallFile file, uint32_t pass, const Value& value) override {
    const EncodedPth encoded(value);
    const std::string name = file_name(file, pass);
    open(name, encoded.size());
    for (const EncodedPth::Piece& piece : encoded.pieces()) put(piece.data, piece.size);
    return "/" + name;
  }
  std::string write_text(const CallKey& /*key*/, CallFile file, uint32_t pass, std::string_view text) override {
    const std::string name = file_name(file, pass);
    open(name, text.size());
    put(text.data(), text.size());
    return "/" + name;
  }
  void flush() override {}
  const std::string& root() const override { return root_; }
  uint64_t bytes_written() const override { return static_cast<uint64_t>(at_ - begin_); }

 private:
  void open(std::string_view name, uint64_t size) {
    const uint64_t name_size = name.size();
    put(&name_size, sizeof name_size);
    put(&size, sizeof size);
    put(name.data(), name.size());
  }
  void put(const void* data, size_t size) {
    if (size > static_cast<size_t>(end_ - at_)) throw TooLarge();
    std::memcpy(at_, data, size);
    at_ += size;
  }

  const std::string root_;
  char* const begin_;
  char* at_;
  char* const end_;
};

size_t bytes_of_tensors(OpCall& call) {
  size_t bytes = 0;
  call.frame().visit_inputs([&](const at::Tensor& tensor) {
    if (tensor.layout() == c10::kStrided && !tensor.is_nested()) bytes += tensor.nbytes();
  });
  return bytes;
}

SavedCall saved_call(OpCall& call, int64_t rank) {
  // The torch level has no tags: whether the call draws random numbers is known when it has ended.
  const bool may_draw = !call.op || call.op->hasTag(at::Tag::nondeterministic_seeded);
  SavedCall saved;
  saved.set_call(CallMeta::of(CallBefore::of(call), CallAfter::of(call, rank)),
                 may_draw ? RandomWatch(call.args(), call.kwargs()).all() : Value());
  saved.meta.random = call.op && may_draw;
  saved.set_inputs(take_snapshot(make_tuple({call.args(), call.kwargs()}), ""));
  return saved;
}

}  // namespace

KeptInputs::KeptInputs(BlackBoxFile& file, const ResolvedBlackBoxOptions& options, int64_t rank)
    : file_(file),
      ops_(options.inputs_ops.get(), "", options.inputs_ops.source(), ""),
      most_bytes_(static_cast<size_t>(options.inputs_mb) << 20),
      rank_(rank),
      places_(static_cast<size_t>(options.inputs)) {}

bool KeptInputs::wants(const OpCall& call) {
  return call.phase == Phase::kForward && ops_.admits(call.name);
}

// A place that no call has, else that of the oldest call which has ended, else of the oldest.
KeptInputs::Place* KeptInputs::take_place(uint64_t call) {
  const std::lock_guard lock(mutex_);
  Place* best = nullptr;
  for (Place& place : places_) {
    if (place.is_busy) continue;
    if (!best || std::pair(place.is_open, place.call) < std::pair(best->is_open, best->call)) best = &place;
  }
  if (best) *best = {call, /*is_open=*/true, /*is_busy=*/true};
  return best;
}

Kept KeptInputs::keep(OpCall& call) {
  if (bytes_of_tensors(call) > most_bytes_) return Kept::kTooLarge;
  Place* const place = take_place(call.id);
  if (!place) return Kept::kNoRoom;
  Kept kept = Kept::kInputs;
  if (BlackBoxFile::KeptPlace* const memory = file_.kept_place(static_cast<uint32_t>(place - places_.data()))) {
    memory->call.store(0, std::memory_order_release);
    PlaceStore store(reinterpret_cast<char*>(memory + 1), file_.header().kept_bytes - sizeof *memory);
    try {
      const SavedCall saved = saved_call(call, rank_);
      write_call(store, saved);
      memory->bytes = store.bytes_written();
      memory->call.store(call.id, std::memory_order_release);
      if (!saved.meta.unsupported.empty()) kept = Kept::kFailed;
    } catch (const TooLarge&) {
      kept = Kept::kTooLarge;
    } catch (const std::exception&) {  // a device that is broken gives no values; the call itself will say so
      kept = Kept::kFailed;
    }
  } else {
    kept = Kept::kNoRoom;
  }
  const std::lock_guard lock(mutex_);
  place->is_busy = false;
  if (kept != Kept::kInputs) place->is_open = false;
  return kept;
}

void KeptInputs::ended(uint64_t call) {
  const std::lock_guard lock(mutex_);
  for (Place& place : places_) {
    if (place.call == call) place.is_open = false;
  }
}

}  // namespace op_tools
