// The Python names that a .pth file may hold, and their meaning: a fixed list of functions that make plain values
// and tensors. Nothing is imported or run. For the reader of .pth files; throws Error for every other name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pth/pickle_node.h"
#include "pth/pth_archive.h"

namespace op_tools::pickled {

[[noreturn]] void refuse_global(const std::string& name);

// module.name by itself: a dtype or another constant, else a node that call() knows or refuses.
Item global_named(std::string_view module, std::string_view name);
// The result of Python's name(*args).
Item call(const std::string& name, const std::vector<Item>& args);
// The storage that a persistent id of torch.save stands for: ("storage", its class, key, device, elements).
Item storage_of(const Item& persistent_id, PthArchive& archive);

}  // namespace op_tools::pickled
