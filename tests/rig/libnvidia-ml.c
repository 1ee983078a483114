/* A libnvidia-ml.so.1 that plays the driver behind the unmodified binding, as a control file says.
 *
 * Here: the library, its GPUs and their slices; what they measure is in readings.c, what happens on
 * them in events.c. Invariant: every call looks at the control as it is now.
 * Source: NVML API reference; what no page says was taken from the binding's own use of it.
 */
#include "call.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static nvmlReturn_t start(enum function fn)
{
    struct call call;
    nvmlReturn_t entered = enter(&call, fn, NULL);
    if (entered != NVML_SUCCESS)
        return entered;
    for (unsigned int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int slice = -1; slice < MAX_SLICES; slice++)
            devices[gpu][slice + 1] = (struct rig_device){gpu, slice};
    sessions(1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return start(FN_nvmlInit_v2);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return start(FN_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void)
{
    ENTER(nvmlShutdown);
    sessions(-1);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    static const struct { int code; const char *text; } texts[] = {
        {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
        {4, "Insufficient Permissions"}, {6, "Not Found"}, {7, "Insufficient Size"},
        {9, "Driver Not Loaded"}, {10, "Timeout"}, {13, "Function Not Found"}, {15, "GPU is lost"},
        {16, "GPU requires reset"}, {18, "Driver/library version mismatch"},
        {25, "Argument version mismatch"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == (int)result)
            return texts[i].text;
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER(nvmlSystemGetDriverVersion);
    return say(call.now->driver, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER(nvmlSystemGetNVMLVersion);
    return say(call.now->nvml, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER(nvmlSystemGetCudaDriverVersion);
    NEEDS(version);
    *version = (int)call.now->cuda;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER(nvmlSystemGetCudaDriverVersion_v2);
    NEEDS(version);
    *version = (int)call.now->cuda;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER(nvmlSystemGetProcessName);
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size - 1 : 0] = 0;
    return say(text, name, length);
}

/* ------------------------------------------------------------------------------- which GPUs */

static unsigned int listed(const struct control *now)
{
    unsigned int count = 0;
    for (unsigned int i = 0; i < now->gpus; i++)
        count += !now->gpu[i].absent;
    return now->count_set && now->count < count ? (unsigned int)now->count : count;
}

/* The GPU that is listed at this place; absent ones are not listed and the others move up. */
static nvmlDevice_t listed_at(const struct control *now, unsigned int place)
{
    for (unsigned int i = 0; i < now->gpus && place < listed(now); i++)
        if (!now->gpu[i].absent && place-- == 0)
            return &devices[i][0];
    return NULL;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER(nvmlDeviceGetCount_v2);
    NEEDS(count);
    *count = call.now->count_set ? (unsigned int)call.now->count : listed(call.now);
    return NVML_SUCCESS;
}

/* A handle of a device that was found: its own troubles come now. */
static nvmlReturn_t hand_out(enum function fn, nvmlDevice_t found, nvmlDevice_t *device)
{
    struct call call;
    NEEDS(device);
    nvmlReturn_t entered = enter(&call, fn, found);
    if (entered == NVML_SUCCESS)
        *device = found;
    return entered;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    nvmlDevice_t found = listed_at(control_now(), index);
    if (found && sessions(0))
        return hand_out(FN_nvmlDeviceGetHandleByIndex_v2, found, device);
    ENTER(nvmlDeviceGetHandleByIndex_v2);
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER(nvmlDeviceGetHandleByUUID);
    NEEDS(uuid);
    for (unsigned int i = 0; i < listed(call.now); i++) {
        nvmlDevice_t found = listed_at(call.now, i);
        const struct gpu *gpu = &call.now->gpu[found->gpu];
        if (strcmp(gpu->uuid, uuid) == 0)
            return hand_out(FN_nvmlDeviceGetHandleByUUID, found, device);
        for (unsigned int slice = 0; slice < gpu->mig; slice++)
            if (strcmp(gpu->slices[slice].uuid, uuid) == 0)
                return hand_out(FN_nvmlDeviceGetHandleByUUID, &devices[found->gpu][slice + 1], device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, nvmlDevice_t *device)
{
    ENTER(nvmlDeviceGetHandleByPciBusId_v2);
    NEEDS(pci);
    for (unsigned int i = 0; i < listed(call.now); i++) {
        nvmlDevice_t found = listed_at(call.now, i);
        if (strcasecmp(call.now->gpu[found->gpu].pci, pci) == 0)
            return hand_out(FN_nvmlDeviceGetHandleByPciBusId_v2, found, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER_DEVICE(nvmlDeviceGetName);
    return say(call.slice ? call.slice->name : call.gpu->name, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER_DEVICE(nvmlDeviceGetUUID);
    return say(call.slice ? call.slice->uuid : call.gpu->uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    ENTER_DEVICE(nvmlDeviceGetSerial);
    return say(call.gpu->serial, serial, length);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER_DEVICE(nvmlDeviceGetIndex);
    NEEDS(index);
    *index = 0;
    if (call.slice)
        *index = (unsigned int)device->slice;
    else
        for (unsigned int i = 0; i < call.number; i++)
            *index += !call.now->gpu[i].absent;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v3);
    NEEDS(pci);
    unsigned int domain = 0, bus = 0, slot = 0;
    sscanf(call.gpu->pci, "%x:%x:%x", &domain, &bus, &slot);
    *pci = (nvmlPciInfo_t){.domain = domain, .bus = bus, .device = slot,
                           .pciDeviceId = 0x20B010DE, .pciSubSystemId = 0x134F10DE};
    snprintf(pci->busId, sizeof pci->busId, "%.31s", call.gpu->pci);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff,
             slot & 0xff);
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------------------- MIG */

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *slice)
{
    ENTER_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex);
    NEEDS(slice && index < MAX_SLICES);
    if (index >= call.gpu->mig)
        return NVML_ERROR_NOT_FOUND;
    nvmlDevice_t found = &devices[call.number][index + 1];
    int code = call.gpu->slices[index].trouble.code[FN_nvmlDeviceGetHandleByIndex_v2];
    *slice = found;
    return (nvmlReturn_t)code;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
    ENTER_DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    NEEDS(parent && call.slice);
    *parent = &devices[call.number][0];
    return NVML_SUCCESS;
}

static nvmlReturn_t instance(const struct call *call, nvmlDevice_t device, unsigned int first, unsigned int *id)
{
    NEEDS(id);
    if (!call->slice)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = first + (unsigned int)device->slice;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE(nvmlDeviceGetGpuInstanceId);
    return instance(&call, device, 7, id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE(nvmlDeviceGetComputeInstanceId);
    nvmlReturn_t code = instance(&call, device, 0, id);
    if (code == NVML_SUCCESS)
        *id = 0;
    return code;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_DEVICE(nvmlDeviceGetAttributes_v2);
    NEEDS(attributes);
    if (!call.slice)
        return NVML_ERROR_NOT_SUPPORTED;
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = 14, .sharedCopyEngineCount = 1,
                                           .gpuInstanceSliceCount = 1, .computeInstanceSliceCount = 1,
                                           .memorySizeMB = call.slice->mem_total >> 20};
    return NVML_SUCCESS;
}
