// Where log lines go. The library is a guest: it never prints by itself unless the embedder leaves
// the default sink, which writes warnings and errors to stderr. Programs install their own sink at
// start.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ckpt {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

// Replaces the process-wide sink; an empty one restores the default. Threads: safe; the sink itself
// is called under no lock.
void SetLogSink(LogSink sink);
void Log(LogLevel level, std::string_view message);

inline void LogDebug(std::string_view message) { Log(LogLevel::kDebug, message); }
inline void LogInfo(std::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(std::string_view message) { Log(LogLevel::kWarning, message); }
inline void LogError(std::string_view message) { Log(LogLevel::kError, message); }

}  // namespace ckpt
