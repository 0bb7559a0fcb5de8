#include "tensor/exception_text.h"

#include <c10/util/Exception.h>

#include "base/host.h"

namespace op_tools {

std::string exception_text(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : host().text_of(error);
  return text.empty() ? "an exception without a message" : text;
}

}  // namespace op_tools
