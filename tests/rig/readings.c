/* What NVML says that a GPU measures: plain numbers, memory, samples and fields.
 *
 * Invariant: a value is the control's, or grows from it with time; nothing is made up.
 */
#include "call.h"

/* A function that gives one number of the GPU. */
#define NUMBER(fn, type, member)                          \
    nvmlReturn_t fn(nvmlDevice_t device, type *value)     \
    {                                                     \
        ENTER_DEVICE(fn);                                 \
        NEEDS(value);                                     \
        *value = (type)(member);                          \
        return NVML_SUCCESS;                              \
    }
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, call.gpu->minor)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, call.gpu->power_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, call.gpu->power_limit_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, call.gpu->power_limit_mw)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_now(call.now, call.number))
NUMBER(nvmlDeviceGetFanSpeed, unsigned int, call.gpu->fan)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, call.gpu->throttle)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, call.gpu->throttle)
NUMBER(nvmlDeviceGetPerformanceState, unsigned int, 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned int, 1)
NUMBER(nvmlDeviceGetComputeMode, unsigned int, 0)
NUMBER(nvmlDeviceGetDisplayMode, unsigned int, call.gpu->display)
NUMBER(nvmlDeviceGetDisplayActive, unsigned int, call.gpu->display)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, call.gpu->mig ? MAX_SLICES - 1 : 0)
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, EVENT_SUPPORTED)
NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned int, call.slice != NULL)

/* The same, for functions that are told which of several. */
#define CHOSEN(fn, type, member)                                           \
    nvmlReturn_t fn(nvmlDevice_t device, unsigned int which, type *value)  \
    {                                                                      \
        ENTER_DEVICE(fn);                                                  \
        NEEDS(value);                                                      \
        (void)which;                                                       \
        *value = (type)(member);                                           \
        return NVML_SUCCESS;                                               \
    }
CHOSEN(nvmlDeviceGetTemperature, unsigned int, call.gpu->temp)
CHOSEN(nvmlDeviceGetFanSpeed_v2, unsigned int, call.gpu->fan)
CHOSEN(nvmlDeviceGetClockInfo, unsigned int, which == 2 ? call.gpu->mem_clock : call.gpu->sm_clock)
CHOSEN(nvmlDeviceGetMaxClockInfo, unsigned int, which == 2 ? call.gpu->mem_clock : call.gpu->max_clock)
CHOSEN(nvmlDeviceGetPcieThroughput, unsigned int, 0)

/* And those that give two. */
#define PAIR(fn, type, one, other)                                         \
    nvmlReturn_t fn(nvmlDevice_t device, type *first, type *second)        \
    {                                                                      \
        ENTER_DEVICE(fn);                                                  \
        NEEDS(first && second);                                            \
        *first = (type)(one);                                              \
        *second = (type)(other);                                           \
        return NVML_SUCCESS;                                               \
    }
PAIR(nvmlDeviceGetEncoderUtilization, unsigned int, call.gpu->encoder_util, 167000)
PAIR(nvmlDeviceGetDecoderUtilization, unsigned int, call.gpu->decoder_util, 167000)
PAIR(nvmlDeviceGetEccMode, unsigned int, 1, 1)
PAIR(nvmlDeviceGetMigMode, unsigned int, call.gpu->mig > 0, call.gpu->mig > 0)
PAIR(nvmlDeviceGetCudaComputeCapability, int, 8, 0)

/* Windows has these. */
#define NOT_ON_LINUX(fn)                                                              \
    nvmlReturn_t fn(nvmlDevice_t device, unsigned int *now, unsigned int *pending)    \
    {                                                                                 \
        ENTER_DEVICE(fn);                                                             \
        (void)now, (void)pending;                                                     \
        return NVML_ERROR_NOT_SUPPORTED;                                              \
    }
NOT_ON_LINUX(nvmlDeviceGetDriverModel)
NOT_ON_LINUX(nvmlDeviceGetDriverModel_v2)

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *value)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureV);
    NEEDS(value);
    if (value->version != TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    value->temperature = (int)call.gpu->temp;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                         unsigned long long *count)
{
    ENTER_DEVICE(nvmlDeviceGetTotalEccErrors);
    NEEDS(count && error < 2 && counter < 2);
    *count = call.gpu->ecc;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                             unsigned int location, unsigned long long *count)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryErrorCounter);
    NEEDS(count && error < 2 && counter < 2);
    *count = location == 2 ? call.gpu->ecc : 0; /* in the device's memory, nowhere else */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ENTER_DEVICE(nvmlDeviceGetUtilizationRates);
    NEEDS(rates);
    *rates = (nvmlUtilization_t){(unsigned int)call.gpu->util, (unsigned int)call.gpu->mem_util};
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------------------- memory */

/* Version 1 counts what the driver keeps for itself as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo);
    NEEDS(info);
    struct memory memory = memory_of(&call);
    *info = (nvmlMemory_t){memory.total, memory.free, memory.used + memory.reserved};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryInfo_v2);
    NEEDS(info);
    if (info->version != MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct memory memory = memory_of(&call);
    *info = (nvmlMemory_v2_t){MEMORY_V2, memory.total, memory.reserved, memory.free, memory.used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetBAR1MemoryInfo);
    NEEDS(info);
    *info = (nvmlBAR1Memory_t){64ull << 30, (64ull << 30) - (1ull << 20), 1ull << 20};
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------------------- samples */

static bool sample_value(const struct gpu *gpu, unsigned int type, unsigned long long place, nvmlValue_t *value)
{
    *value = (nvmlValue_t){.as_ulonglong = 0};
    if (type == SAMPLES_GPU_UTIL)
        value->as_uint = (unsigned int)(gpu->sample_count ? gpu->sample_values[place % gpu->sample_count] : gpu->util);
    else if (type == SAMPLES_MEMORY_UTIL)
        value->as_uint = (unsigned int)gpu->mem_util;
    else if (type == SAMPLES_POWER)
        value->as_uint = (unsigned int)gpu->power_mw;
    else if (type == SAMPLES_SM_CLOCK)
        value->as_uint = (unsigned int)gpu->sm_clock;
    else
        return false;
    return true;
}

/* The samples newer than `seen_us`. A list alone: exactly that list, new at each call. With a rate:
 * an endless row of them at fixed times, of which the last MAX_SAMPLES are kept. */
static unsigned int fill_samples(const struct gpu *gpu, unsigned int type, unsigned long long seen_us,
                                 unsigned int room, nvmlSample_t *samples)
{
    unsigned long long at_us = now_us(), first, last, period_us;
    if (gpu->samples_set && !gpu->samples_hz_set) {
        unsigned long long since_us = seen_us + 1000000 > at_us && seen_us < at_us ? seen_us : at_us - 1000000;
        first = 1, last = gpu->sample_count;
        period_us = last ? (at_us - since_us) / last : 1;
        for (unsigned int i = 0; i < last && i < room; i++) {
            samples[i].timeStamp = at_us - (last - 1 - i) * period_us;
            sample_value(gpu, type, i, &samples[i].sampleValue);
        }
        return (unsigned int)(last < room ? last : room);
    }
    if (gpu->samples_hz <= 0)
        return 0;
    period_us = (unsigned long long)(1e6 / gpu->samples_hz);
    last = at_us / period_us;
    first = last - MAX_SAMPLES + 1;
    if (seen_us / period_us + 1 > first)
        first = seen_us / period_us + 1;
    unsigned int count = 0;
    for (unsigned long long place = first; place <= last && count < room; place++, count++) {
        samples[count].timeStamp = place * period_us;
        sample_value(gpu, type, place, &samples[count].sampleValue);
    }
    return count;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned int type, unsigned long long seen_us,
                                  unsigned int *value_type, unsigned int *count, nvmlSample_t *samples)
{
    ENTER_DEVICE(nvmlDeviceGetSamples);
    NEEDS(value_type && count);
    nvmlValue_t unused;
    if (!sample_value(call.gpu, type, 0, &unused))
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = VALUE_UNSIGNED_INT;
    if (!samples) { /* the size of the buffer, which is more than it holds that is new */
        *count = MAX_SAMPLES;
        return NVML_SUCCESS;
    }
    *count = fill_samples(call.gpu, type, seen_us, *count, samples);
    return *count ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ------------------------------------------------------------------------------- fields */

static nvmlReturn_t read_field(const struct call *call, nvmlFieldValue_t *field)
{
    const struct gpu *gpu = call->gpu;
    const struct trouble *trouble = &gpu->trouble;
    nvmlReturn_t code = NVML_SUCCESS;
    bool given = false;
    for (unsigned int i = 0; i < gpu->field_count; i++) {
        const struct field *said = &gpu->fields[i];
        if (said->id == field->fieldId && said->has_value) {
            field->value.as_ulonglong = said->value;
            given = true;
        }
        if ((said->id == field->fieldId || (said->id == 0 && !code)) && said->code)
            code = (nvmlReturn_t)said->code;
    }
    field->valueType = field->fieldId == FIELD_ENERGY ? VALUE_UNSIGNED_LONG_LONG : VALUE_UNSIGNED_INT;
    if (code || given)
        return code;
    if (field->scopeId != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (field->fieldId == FIELD_ENERGY) {
        field->value.as_ulonglong = energy_now(call->now, call->number);
        return (nvmlReturn_t)trouble->code[FN_nvmlDeviceGetTotalEnergyConsumption];
    }
    unsigned long long power_mw = gpu->power_mw;
    if (field->fieldId == FIELD_POWER_AVERAGE && gpu->power_average_mw)
        power_mw = gpu->power_average_mw;
    if (field->fieldId == FIELD_POWER_INSTANT && gpu->power_instant_mw)
        power_mw = gpu->power_instant_mw;
    field->value.as_uint = (unsigned int)power_mw;
    if (field->fieldId == FIELD_POWER_AVERAGE || field->fieldId == FIELD_POWER_INSTANT)
        return (nvmlReturn_t)trouble->code[FN_nvmlDeviceGetPowerUsage];
    return NVML_ERROR_NOT_SUPPORTED;
}

/* The call succeeds as a whole; each field has a code of its own. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    ENTER_DEVICE(nvmlDeviceGetFieldValues);
    NEEDS(fields && count >= 0);
    for (int i = 0; i < count; i++) {
        fields[i].value.as_ulonglong = 0;
        fields[i].timestamp = (long long)now_us();
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = read_field(&call, &fields[i]);
        if (fields[i].nvmlReturn)
            fields[i].value.as_ulonglong = 0;
    }
    return NVML_SUCCESS;
}
