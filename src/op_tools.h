// Everything that a C++ program needs: the tools as RAII scopes, and what a hook of its own is made of.
#pragma once

#include "capture/capture_hook.h"
#include "compare/compare_hook.h"
#include "fallback/redirect_hook.h"
#include "hooks/chain.h"
#include "hooks/error.h"
#include "hooks/hook.h"
#include "hooks/log.h"
#include "hooks/op_call.h"
#include "hooks/op_filter.h"
#include "hooks/options.h"
#include "hooks/scope.h"
#include "hooks/tool.h"
#include "hooks/value.h"
#include "hooks/version.h"
#include "observe/overflow_check.h"
#include "timing/time_hook.h"
