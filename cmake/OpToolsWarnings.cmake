# Warnings (errors by default) and sanitizers, for our own targets only.
add_library(op_tools_warnings INTERFACE)
target_compile_options(op_tools_warnings INTERFACE -Wall -Wextra -Wpedantic $<$<BOOL:${OP_TOOLS_WERROR}>:-Werror>)
if(OP_TOOLS_SANITIZE)
  target_compile_options(op_tools_warnings INTERFACE -fsanitize=${OP_TOOLS_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(op_tools_warnings INTERFACE -fsanitize=${OP_TOOLS_SANITIZE})
endif()
