#include "tensor/parallel_for.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace op_tools {

// at::parallel_for is a template over an OpenMP pragma: in a library that is built without OpenMP (which would bring a
// second runtime beside torch's) it does all in the caller's thread. Threads of ours cost less than a task each.
void parallel_for(int64_t tasks, int64_t per_task, const std::function<void(int64_t begin, int64_t end)>& work) {
  constexpr int64_t kWorthAThread = 1 << 20;  // elements
  const int64_t most = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t parts = std::max<int64_t>(1, std::min(most, tasks * per_task / kWorthAThread));
  int64_t begin = 0;
  std::vector<std::jthread> threads;
  try {
    for (int64_t part = 1; part < parts; ++part) {
      const int64_t end = tasks * part / parts;
      threads.emplace_back([&work, begin, end] { work(begin, end); });
      begin = end;
    }
  } catch (const std::system_error&) {  // no more threads to be had: the rest is done here
  }
  work(begin, tasks);
}

}  // namespace op_tools
