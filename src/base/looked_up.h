// Thread-local variables in code that runs at each call: every look-up is a call into the loader's library.
#pragma once

namespace op_tools {

// A thread-local variable by an address that the compiler does not see through: it would look the variable up anew at
// each use, even in a loop.
template <class T>
T& looked_up_once(T& variable) {
  T* address = &variable;
#if defined(__GNUC__)
  asm("" : "+r"(address));
#endif
  return *address;
}

}  // namespace op_tools
