# Warnings (errors in the presets) and sanitizers, for our own targets only.
add_library(op_tools_warnings INTERFACE)
target_compile_options(op_tools_warnings INTERFACE -Wall -Wextra -Wpedantic $<$<BOOL:${OP_TOOLS_WERROR}>:-Werror>)
if(OP_TOOLS_SANITIZE)
  # gcc 12 with sanitizers takes std::regex's own variables for uninitialized.
  target_compile_options(op_tools_warnings INTERFACE -fsanitize=${OP_TOOLS_SANITIZE} -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(OP_TOOLS_SANITIZE STREQUAL "thread")
    # gcc's thread sanitizer does not know fences and says so; torch's headers have a fence (c10/core/impl/PyObjectSlot.h).
    target_compile_options(op_tools_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
  target_link_options(op_tools_warnings INTERFACE -fsanitize=${OP_TOOLS_SANITIZE})
endif()
