// Functions that torch has under two names: as tools see it, as users may write it. Filters take both, in programs
// without Python, too.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace op_tools {

const std::vector<std::pair<std::string, std::string>>& other_names_of_torch();

}  // namespace op_tools
