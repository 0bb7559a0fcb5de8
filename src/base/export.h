// The only macro that makes a symbol of libop_tools visible; everything else is hidden.
#pragma once

#define OP_TOOLS_API __attribute__((visibility("default")))
