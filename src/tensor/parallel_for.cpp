#include "tensor/parallel_for.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <memory>

#include "base/fork_guard.h"

namespace op_tools {
namespace {

// In a forked child torch's threads are gone, and work for them waits for ever.
const ForkGuard g_loader;

}  // namespace

// On torch's own threads, which its loops over elements are run by. The template at::parallel_for would need OpenMP
// here, and threads of ours would compete with torch's, which look for work for a while after each operator.
void parallel_for(int64_t tasks, int64_t per_task, const std::function<void(int64_t begin, int64_t end)>& work) {
  constexpr int64_t kWorthAThread = 1 << 16;  // elements
  const int64_t most = at::in_parallel_region() || g_loader.in_child() ? 1 : at::get_num_threads();
  const int64_t parts = std::min({most, tasks, tasks * per_task / kWorthAThread});
  if (parts <= 1) return work(0, tasks);
  const auto places = std::make_unique<char[]>(static_cast<size_t>(parts));  // their addresses are the parts' numbers
  at::Tensor numbers = at::from_blob(places.get(), {parts}, at::TensorOptions().dtype(at::kChar));
  const auto run = [&](char** data, const int64_t*, int64_t count, int64_t) {
    const int64_t part = data[0] - places.get();
    work(tasks * part / parts, tasks * (part + count) / parts);
  };
  at::TensorIterator::nullary_op(numbers).for_each(run, /*grain_size=*/1);
}

}  // namespace op_tools
