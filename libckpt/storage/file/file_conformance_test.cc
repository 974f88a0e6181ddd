#include "libckpt/storage/file/file_world.h"
#include "libckpt/testing/store_conformance.h"
#include "libckpt/testing/store_flaws.h"
#include "libckpt/testing/store_retention.h"

namespace ckpt::testing {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(File, StoreConformance, FileWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(File, StoreFlaws, FastFileWorld);
INSTANTIATE_TYPED_TEST_SUITE_P(File, StoreRetention, FastFileWorld);

}  // namespace
}  // namespace ckpt::testing
