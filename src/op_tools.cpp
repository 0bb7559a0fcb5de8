// libop_tools.so is made of the parts; CMake wants a source of its own. It also proves that the umbrella header stands
// by itself.
#include "op_tools.h"
