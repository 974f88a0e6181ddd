#pragma once

// Which sanitizer this build has, for tests of what one of them changes (signals held back, freed
// memory kept).
namespace ckpt {

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool kThreadSanitizer = false;
inline constexpr bool kAddressSanitizer = true;
#elif defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
inline constexpr bool kAddressSanitizer = false;
#else
inline constexpr bool kThreadSanitizer = false;
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace ckpt
