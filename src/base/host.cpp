#include "base/host.h"

#include <atomic>

namespace op_tools {
namespace {

std::atomic<Host*> g_host{nullptr};

}  // namespace

const OwnCommands& Host::own_commands() {
  static const auto* const defaults = new OwnCommands;
  return *defaults;
}

Host& host() {
  static auto* const defaults = new Host;  // leaked: asked until the process ends
  Host* const installed = g_host.load(std::memory_order_acquire);
  return installed ? *installed : *defaults;
}

Host* install_host(Host* host) {
  return g_host.exchange(host, std::memory_order_acq_rel);
}

}  // namespace op_tools
