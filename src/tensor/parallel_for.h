// Loops over the elements of large tensors on as many cores as the program lets torch have.
#pragma once

#include <cstdint>
#include <functional>

namespace op_tools {

// work(begin, end) for parts of the tasks 0 to `tasks`, each of `per_task` elements, on torch's threads when there
// are enough elements to be worth them. `work` throws nothing and runs no operator: no state of torch's is set there.
void parallel_for(int64_t tasks, int64_t per_task, const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace op_tools
