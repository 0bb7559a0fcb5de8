// Precompiled beside precompiled.h where a room's files are compiled together: of eight files there are always some that need
// torch's dispatcher. To load it takes 0.9 s, to parse it 2 to 4.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
