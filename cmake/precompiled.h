// Parsed once for all rooms that know torch (OpToolsBuildSpeed.cmake). Only headers that nearly every file needs: gcc
// takes 0.4 s per file to load this, and would take 1.3 s with torch's dispatcher in it.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
