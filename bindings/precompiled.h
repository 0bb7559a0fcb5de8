// Parsed once for all files of the Python extensions (cmake/OpToolsBuildSpeed.cmake).
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
