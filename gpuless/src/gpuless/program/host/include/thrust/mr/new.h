// The memory of Thrust's device vectors: that of the device.
#pragma once
#include <thrust/mr/memory_resource.h>

THRUST_NAMESPACE_BEGIN
namespace mr {

class new_delete_resource_base : public memory_resource<>
{
public:
    void* do_allocate(std::size_t bytes, std::size_t = THRUST_MR_DEFAULT_ALIGNMENT) override
    {
        void* memory = nullptr;
        if (cudaMallocManaged(&memory, bytes)) throw std::bad_alloc();
        return memory;
    }
    void do_deallocate(void* memory, std::size_t, std::size_t = THRUST_MR_DEFAULT_ALIGNMENT) override { cudaFree(memory); }
};
class new_delete_resource final : public new_delete_resource_base {};

}  // namespace mr
THRUST_NAMESPACE_END
