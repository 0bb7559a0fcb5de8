#include "run_op_from_data/shrink.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/round.h>
#include <ATen/ops/squeeze.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "fallback/cpu_runner.h"
#include "run_op_from_data/call_edit.h"

namespace op_tools::replay {
namespace {

// A dimension of a tensor of the call.
struct Place {
  size_t tensor;
  int64_t dim;
  auto operator<=>(const Place&) const = default;
};

std::string text_of(const std::vector<Place>& places, int64_t size) {
  std::string text = "size " + std::to_string(size) + " (";
  for (size_t i = 0; i < places.size(); ++i) {
    text += (i ? ", " : "") + std::string("dimension ") + std::to_string(places[i].dim) + " of input " +
            std::to_string(places[i].tensor);
  }
  return text + ")";
}

class Shrinker {
 public:
  Shrinker(SavedCall call, const TryCall& attempt, size_t attempts) : attempt_(attempt), left_(attempts) {
    shrunk_.call = std::move(call);
  }

  Shrunk run() {
    simplify_program();
    drop_arguments();
    own_memory();
    // A smaller size may make another size possible.
    for (int round = 0; round < 3 && left_ > 0; ++round) {
      const int64_t before = elements_of(shrunk_.call);
      shrink_sizes();
      if (elements_of(shrunk_.call) == before) break;
    }
    drop_dimensions();
    simplify_values();
    return std::move(shrunk_);
  }

 private:
  const SavedCall& call() const { return shrunk_.call; }

  Attempt try_step(SavedCall candidate, const std::string& step) {
    if (left_ == 0) return Attempt::kInvalid;
    --left_;
    const Attempt outcome = attempt_(candidate, step);
    if (outcome == Attempt::kFails) {
      shrunk_.call = std::move(candidate);
      shrunk_.steps.push_back(step);
    }
    return outcome;
  }
  bool takes(SavedCall candidate, const std::string& step) {
    return try_step(std::move(candidate), step) == Attempt::kFails;
  }

  void simplify_program();
  void drop_arguments();
  void own_memory();
  void shrink_sizes();
  void shrink_places(const std::vector<Place>& places);
  std::vector<int64_t> sizes_of_call() const;
  Attempt try_size(const std::vector<Place>& places, int64_t size, bool first);
  Attempt try_new_size(const std::vector<Place>& places, int64_t size, bool first);
  void bisect(const std::vector<Place>& places, bool first);
  void drop_dimensions();
  void simplify_values();

  const TryCall& attempt_;
  size_t left_;
  using SizeStep = std::tuple<std::vector<int64_t>, std::vector<Place>, int64_t, bool>;  // of the call as it was
  std::map<SizeStep, Attempt> tried_;
  Shrunk shrunk_;
};

void Shrinker::simplify_program() {
  if (!call().backward.empty()) takes(forward_alone(call()), "forward alone");
  const auto without = [&](const char* step, bool is_set, const std::function<void(ProgramState&)>& change) {
    if (!is_set) return;
    SavedCall candidate = call();
    change(candidate.meta.state);
    takes(std::move(candidate), step);
  };
  const ProgramState state = call().meta.state;
  without("no inference mode", state.inference_mode, [](ProgramState& to) { to.inference_mode = false; });
  without("no deterministic algorithms", state.process.deterministic.value_or(false),
          [](ProgramState& to) { to.process.deterministic.reset(); });
  if (!call().aten.is<None>()) {
    SavedCall candidate = call();
    candidate.aten = Value();
    takes(std::move(candidate), "by name");
  }
}

void Shrinker::drop_arguments() {
  if (!call().aten.is<None>()) return;  // the recorded arguments belong to the call's
  if (const auto* kwargs = call().kwargs.get_if<Dict>()) {
    for (const auto& [key, value] : std::vector(*kwargs->items)) {
      const auto* name = key.get_if<std::string>();
      if (name) takes(without_keyword(call(), *name), "without " + *name);
    }
  }
  while (left_ > 0 && sequence_items(call().args)->size() > 1) {
    const std::string step = "without argument " + std::to_string(sequence_items(call().args)->size() - 1);
    if (!takes(without_last_argument(call()), step)) break;
  }
}

void Shrinker::own_memory() {
  const auto own = [](const at::Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); };
  bool all_plain = true;
  std::set<const void*> memories;
  for (const at::Tensor& tensor : argument_tensors(call())) {
    const bool alone = memories.insert(tensor.storage().unsafeGetStorageImpl()).second;
    all_plain = all_plain && alone && tensor.is_contiguous();
  }
  if (all_plain || takes(with_tensors(call(), own), "contiguous")) return;
  const size_t count = argument_tensors(call()).size();
  for (size_t i = 0; count > 1 && i < count; ++i) {
    const at::Tensor original = argument_tensors(call())[i];
    if (original.is_contiguous()) continue;
    const auto only = [&](const at::Tensor& tensor) { return tensor.is_same(original) ? own(tensor) : tensor; };
    takes(with_tensors(call(), only), "input " + std::to_string(i) + " contiguous");
  }
}

// First dimensions of the same size together, then those at the same place, then each dimension alone.
void Shrinker::shrink_sizes() {
  const auto groups = [&](const std::function<int64_t(size_t, int64_t, int64_t)>& key) {
    std::map<int64_t, std::vector<Place>, std::greater<>> grouped;
    const auto tensors = argument_tensors(call());
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (int64_t d = 0; d < tensors[i].dim(); ++d) {
        if (tensors[i].size(d) > 1) grouped[key(i, d, tensors[i].size(d))].push_back({i, d});
      }
    }
    std::vector<std::vector<Place>> lists;
    for (auto& [number, places] : grouped) lists.push_back(std::move(places));
    return lists;
  };
  constexpr int64_t kMostDims = 64;
  const auto shrink_all = [&](const std::vector<std::vector<Place>>& lists) {
    for (const auto& places : lists) {
      if (left_ > 0) shrink_places(places);
    }
  };
  shrink_all(groups([](size_t, int64_t, int64_t size) { return size; }));
  shrink_all(groups([](size_t, int64_t dim, int64_t size) { return size * kMostDims + dim; }));
  shrink_all(
      groups([](size_t tensor, int64_t dim, int64_t) { return static_cast<int64_t>(tensor) * kMostDims + dim; }));
}

std::vector<int64_t> Shrinker::sizes_of_call() const {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : argument_tensors(call())) {
    sizes.insert(sizes.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return sizes;
}

void Shrinker::shrink_places(const std::vector<Place>& places) {
  bisect(places, /*first=*/true);
  bisect(places, /*first=*/false);
}

// Sizes come again, in other groups and rounds.
Attempt Shrinker::try_size(const std::vector<Place>& places, int64_t size, bool first) {
  const SizeStep step(sizes_of_call(), places, size, first);
  const auto known = tried_.find(step);
  if (known != tried_.end()) return known->second;
  const Attempt outcome = try_new_size(places, size, first);
  if (outcome != Attempt::kFails) tried_.emplace(step, outcome);
  return outcome;
}

// `first`: the first elements remain, else the last.
Attempt Shrinker::try_new_size(const std::vector<Place>& places, int64_t size, bool first) {
  const auto tensors = argument_tensors(call());
  const int64_t before = tensors[places[0].tensor].size(places[0].dim);
  std::map<const void*, at::Tensor> smaller;
  for (const Place& place : places) {
    const at::Tensor& tensor = tensors[place.tensor];
    at::Tensor& now = smaller.try_emplace(tensor.unsafeGetTensorImpl(), tensor.detach()).first->second;
    if (place.dim >= now.dim() || now.size(place.dim) < size) return Attempt::kInvalid;
    if (now.size(place.dim) > size) now = at::narrow(now, place.dim, first ? 0 : now.size(place.dim) - size, size);
  }
  const auto narrowed = [&](const at::Tensor& tensor) {
    const auto entry = smaller.find(tensor.unsafeGetTensorImpl());
    return entry == smaller.end() ? tensor : entry->second;
  };
  const std::string step = text_of(places, size);
  const SavedCall candidate = with_tensors(call(), narrowed);
  const Attempt plain = try_step(candidate, step);
  if (plain != Attempt::kInvalid) return plain;
  // Sizes among the arguments, and indices that are too large now.
  return try_step(with_numbers(candidate, before, size), step + ", numbers too");
}

void Shrinker::bisect(const std::vector<Place>& places, bool first) {
  const auto size_now = [&] { return argument_tensors(call())[places[0].tensor].size(places[0].dim); };
  int64_t fails = size_now();
  int64_t passes = 0;  // or cannot be run
  std::optional<int64_t> really_passes;
  for (int64_t size = 1; fails - passes > 1 && left_ > 0; size = passes + (fails - passes) / 2) {
    const Attempt outcome = try_size(places, size, first);
    if (outcome == Attempt::kFails) {
      fails = size;
    } else {
      passes = size;
      if (outcome == Attempt::kPasses) really_passes = size;
    }
  }
  if (!first || really_passes != fails - 1 || size_now() != fails) return;
  const std::string size = text_of(places, fails);
  const auto is_known = [&](const SizeLimit& limit) { return limit.size == size; };
  if (std::none_of(shrunk_.limits.begin(), shrunk_.limits.end(), is_known)) {
    shrunk_.limits.push_back({size, fails, fails - 1});
  }
}

void Shrinker::drop_dimensions() {
  for (bool again = true; again && left_ > 0;) {
    again = false;
    const auto tensors = argument_tensors(call());
    int64_t most = 0;
    for (const at::Tensor& tensor : tensors) most = std::max(most, tensor.dim());
    for (int64_t d = 0; d < most && !again; ++d) {
      const auto has = [d](const at::Tensor& tensor) { return tensor.dim() > d && tensor.size(d) == 1; };
      if (std::none_of(tensors.begin(), tensors.end(), has)) continue;
      const auto squeezed = [&](const at::Tensor& tensor) { return has(tensor) ? at::squeeze(tensor, d) : tensor; };
      again = takes(with_tensors(call(), squeezed), "without dimension " + std::to_string(d));
    }
  }
}

void Shrinker::simplify_values() {
  const auto is_float = [](const at::Tensor& tensor) { return tensor.is_floating_point() && tensor.numel() > 0; };
  using Change = std::function<at::Tensor(const at::Tensor&)>;
  const std::pair<const char*, Change> changes[] = {
      {"ones", [](const at::Tensor& tensor) { return at::ones_like(tensor); }},
      {"integers", [](const at::Tensor& tensor) { return at::round(tensor); }},
      {"eighths", [](const at::Tensor& tensor) { return at::div(at::round(at::mul(tensor, 8)), 8); }},
  };
  std::set<size_t> simple;
  const size_t count = argument_tensors(call()).size();
  for (const auto& [name, change] : changes) {
    for (size_t i = 0; i < count && left_ > 0; ++i) {
      const at::Tensor original = argument_tensors(call())[i];
      if (!is_float(original) || simple.contains(i)) continue;
      const auto changed = [&, change = change](const at::Tensor& tensor) {
        return tensor.is_same(original) ? change(tensor.detach()) : tensor;
      };
      if (takes(with_tensors(call(), changed), "input " + std::to_string(i) + " of " + name)) simple.insert(i);
    }
  }
}

}  // namespace

int64_t elements_of(const SavedCall& call) {
  int64_t count = 0;
  for (const at::Tensor& tensor : argument_tensors(call)) count += tensor.numel();
  return count;
}

at::Tensor fitted_gradient(const at::Tensor& gradient, const at::Tensor& result) {
  if (!gradient.defined() || gradient.sizes() == result.sizes()) return gradient;
  at::Tensor part = gradient;
  bool fits = gradient.dim() == result.dim();
  for (int64_t d = 0; fits && d < part.dim(); ++d) {
    fits = result.size(d) <= part.size(d);
    if (fits) part = at::narrow(part, d, 0, result.size(d));
  }
  return fits ? part.contiguous() : at::ones(result.sizes(), gradient.options());
}

Shrunk shrink(SavedCall call, const TryCall& attempt, size_t attempts) {
  return Shrinker(std::move(call), attempt, attempts).run();
}

}  // namespace op_tools::replay
