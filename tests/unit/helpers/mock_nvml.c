/* Copyright (c) 2026, the gpufleet.nvidia maintainers
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stands for the driver's libnvidia-ml.so.1.  What it tells is in nvml.conf beside it, a line each:
 *   driver VERSION
 *   count NUMBER                                     of GPUs, if it is to be another than there are
 *   gpu UUID MINOR BUS MIG NAME                      MIG: -1 without such a mode, 0 off, 1 on; NAME may have spaces
 *   mig GPU INDEX UUID GI CI PROFILE                 PROFILE: as nvml.h numbers them
 *   addressing GPU MODE                              0 none, 1 HMM, 2 ATS; without such a line it is not supported
 *   vgpu GPU MODE SUPPORTED STATE ENABLED PRODUCT    MODE: 2 is a vGPU; STATE: of its license; without it, not supported
 *   fail FUNCTION GPU CODE                           GPU: -1 for every call
 *   do FUNCTION crash | exit | hang | print | make | write
 *                                                    make: something in /dev, as the library does
 *                                                    write: an answer to every descriptor that may be open
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { PROFILES = 0x12, MOST = 64, MOST_MIGS = 1024, SLOTS = 7 };

struct gpu { char uuid[96]; unsigned minor; char bus[32]; int mig; char name[96]; };
struct mig { int gpu; unsigned index; char uuid[96]; unsigned gi, ci, profile; };
struct rule { char function[64]; int gpu, code; char deed[16]; };

static struct gpu gpus[MOST];
static struct mig migs[MOST_MIGS];
static struct rule rules[MOST];
static unsigned gpu_count, mig_count, rule_count, told_count;
static char version[96];
static int initialised;
static int addressing[MOST];
static struct vgpu { int mode, supported; unsigned state, enabled; char product[128]; } vgpus[MOST];

/* GPUs call their profiles by numbers of their own: these differ from those of nvml.h, but are among them. */
static unsigned profile_id(unsigned profile) { return profile ^ 0xA; }

static void load(void)
{
    Dl_info self;
    char path[4096], line[512], *slash;
    FILE *file;

    gpu_count = mig_count = rule_count = 0;
    told_count = ~0u;
    memset(addressing, -1, sizeof addressing);
    memset(vgpus, -1, sizeof vgpus);
    dladdr((void *)load, &self);
    snprintf(path, sizeof path, "%s", self.dli_fname);
    slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "nvml.conf");
    file = fopen(path, "r");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file)) {
        struct gpu *gpu = &gpus[gpu_count % MOST];
        struct mig *mig = &migs[mig_count % MOST_MIGS];
        struct rule *rule = &rules[rule_count % MOST];
        struct vgpu vgpu;
        int number, mode;
        if (sscanf(line, "driver %95s", version) == 1 || sscanf(line, "count %u", &told_count) == 1)
            continue;
        if (sscanf(line, "addressing %d %d", &number, &mode) == 2)
            addressing[number % MOST] = mode;
        else if (sscanf(line, "vgpu %d %d %d %u %u %127[^\n]", &number, &vgpu.mode, &vgpu.supported, &vgpu.state,
                        &vgpu.enabled, vgpu.product) == 6)
            vgpus[number % MOST] = vgpu;
        else if (sscanf(line, "gpu %95s %u %31s %d %95[^\n]", gpu->uuid, &gpu->minor, gpu->bus, &gpu->mig, gpu->name) == 5)
            gpu_count++;
        else if (sscanf(line, "mig %d %u %95s %u %u %u", &mig->gpu, &mig->index, mig->uuid, &mig->gi, &mig->ci,
                        &mig->profile) == 6)
            mig_count++;
        else if (sscanf(line, "fail %63s %d %d", rule->function, &rule->gpu, &rule->code) == 3) {
            rule->deed[0] = 0;
            rule_count++;
        } else if (sscanf(line, "do %63s %15s", rule->function, rule->deed) == 2)
            rule_count++;
    }
    fclose(file);
}

static struct gpu *as_gpu(void *handle)
{
    struct gpu *gpu = handle;
    return gpu >= gpus && gpu < gpus + gpu_count ? gpu : NULL;
}

static struct mig *as_mig(void *handle)
{
    struct mig *mig = handle;
    return mig >= migs && mig < migs + mig_count ? mig : NULL;
}

/* What a line of nvml.conf wants of this call. */
static int wanted(const char *function, void *handle, int index)
{
    char made[64];
    unsigned i;

    if (as_gpu(handle))
        index = (int)(as_gpu(handle) - gpus);
    else if (as_mig(handle))
        index = as_mig(handle)->gpu;
    for (i = 0; i < rule_count; i++) {
        if (strcmp(rules[i].function, function) != 0)
            continue;
        if (strcmp(rules[i].deed, "crash") == 0)
            abort();
        if (strcmp(rules[i].deed, "exit") == 0)
            _exit(3);
        if (strcmp(rules[i].deed, "hang") == 0)
            for (;;)
                pause();
        if (strcmp(rules[i].deed, "make") == 0) {
            /* Named after the process that asks: the library is in one of its own. */
            snprintf(made, sizeof made, "/dev/gpufleet-mock-nvml-%d", (int)getppid());
            close(open(made, O_CREAT | O_WRONLY, 0600));
        } else if (strcmp(rules[i].deed, "print") == 0) {
            puts("words of the library");
            fflush(stdout);
            fputs("more of them\n", stderr);
        } else if (strcmp(rules[i].deed, "write") == 0) {
            static const char answer[] = "{\"version\": \"1\", \"gpus\": []}\n";
            for (int number = 3; number < 1024; number++)
                if (write(number, answer, sizeof answer - 1) < 0)
                    continue;
        } else if (rules[i].gpu == -1 || rules[i].gpu == index)
            return rules[i].code;
    }
    return initialised ? SUCCESS : UNINITIALIZED;
}

#define AS_WANTED(handle, index)                            \
    do {                                                    \
        int code = wanted(__func__, (handle), (index));     \
        if (code != SUCCESS)                                \
            return code;                                    \
    } while (0)

static int give(char *buffer, unsigned size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

int nvmlInit_v2(void)
{
    load();
    initialised = 1;
    AS_WANTED(NULL, -2);
    return SUCCESS;
}

int nvmlShutdown(void)
{
    AS_WANTED(NULL, -2);
    initialised = 0;
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned size)
{
    AS_WANTED(NULL, -2);
    return give(buffer, size, version);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    AS_WANTED(NULL, -2);
    *count = told_count != ~0u ? told_count : gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    AS_WANTED(NULL, (int)index);
    if (index >= gpu_count)
        return INVALID_ARGUMENT;
    *handle = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *buffer, unsigned size)
{
    AS_WANTED(handle, -2);
    if (as_mig(handle))
        return give(buffer, size, as_mig(handle)->uuid);
    return as_gpu(handle) ? give(buffer, size, as_gpu(handle)->uuid) : INVALID_ARGUMENT;
}

int nvmlDeviceGetName(void *handle, char *buffer, unsigned size)
{
    char name[192];

    AS_WANTED(handle, -2);
    if (as_mig(handle)) {
        /* The driver has names as 1g.5gb behind that of the GPU. */
        snprintf(name, sizeof name, "%s MIG %ug", gpus[as_mig(handle)->gpu].name, as_mig(handle)->profile + 1);
        return give(buffer, size, name);
    }
    return as_gpu(handle) ? give(buffer, size, as_gpu(handle)->name) : INVALID_ARGUMENT;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor)
{
    AS_WANTED(handle, -2);
    if (!as_gpu(handle))
        return INVALID_ARGUMENT;
    *minor = as_gpu(handle)->minor;
    return SUCCESS;
}

struct pci { char short_bus[16]; unsigned numbers[5]; char bus[32]; };

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci)
{
    AS_WANTED(handle, -2);
    if (!as_gpu(handle))
        return INVALID_ARGUMENT;
    memset(pci, 0x55, sizeof *pci);
    return give(pci->bus, sizeof pci->bus, as_gpu(handle)->bus);
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    AS_WANTED(handle, -2);
    if (!as_gpu(handle))
        return INVALID_ARGUMENT;
    if (as_gpu(handle)->mig < 0)
        return NOT_SUPPORTED;
    *current = (unsigned)as_gpu(handle)->mig;
    *pending = !*current;
    return SUCCESS;
}

struct addressing { unsigned version, value; };

int nvmlDeviceGetAddressingMode(void *handle, struct addressing *found)
{
    AS_WANTED(handle, -2);
    if (!as_gpu(handle) || found->version != (sizeof *found | 1u << 24))
        return INVALID_ARGUMENT;
    if (addressing[as_gpu(handle) - gpus] < 0)
        return NOT_SUPPORTED;
    found->value = (unsigned)addressing[as_gpu(handle) - gpus];
    return SUCCESS;
}

int nvmlDeviceGetVirtualizationMode(void *handle, int *mode)
{
    AS_WANTED(handle, -2);
    if (!as_gpu(handle))
        return INVALID_ARGUMENT;
    if (vgpus[as_gpu(handle) - gpus].mode < 0)
        return NOT_SUPPORTED;
    *mode = vgpus[as_gpu(handle) - gpus].mode;
    return SUCCESS;
}

struct expiry { unsigned year; unsigned short month, day, hour, minute, second; unsigned char status; };
struct feature { int code; unsigned state; char info[128], product[128]; unsigned enabled; struct expiry expiry; };
struct features { int supported; unsigned count; struct feature features[3]; };

int nvmlDeviceGetGridLicensableFeatures_v4(void *handle, struct features *found)
{
    struct vgpu *vgpu;
    AS_WANTED(handle, -2);
    if (!as_gpu(handle))
        return INVALID_ARGUMENT;
    vgpu = &vgpus[as_gpu(handle) - gpus];
    memset(found, 0, sizeof *found);
    found->supported = vgpu->supported;
    if (!vgpu->supported)
        return SUCCESS;
    /* The second feature is the one of the vGPU. */
    found->count = 2;
    found->features[0].code = 3;
    found->features[1].code = 1;
    found->features[1].state = vgpu->state;
    found->features[1].enabled = vgpu->enabled;
    strcpy(found->features[1].product, vgpu->product);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count)
{
    AS_WANTED(handle, -2);
    *count = SLOTS;
    return as_gpu(handle) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **found)
{
    unsigned i;

    AS_WANTED(handle, -2);
    for (i = 0; i < mig_count; i++)
        if (as_gpu(handle) == &gpus[migs[i].gpu] && migs[i].index == index) {
            *found = &migs[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *gi)
{
    AS_WANTED(handle, -2);
    if (!as_mig(handle))
        return INVALID_ARGUMENT;
    *gi = as_mig(handle)->gi;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *ci)
{
    AS_WANTED(handle, -2);
    if (!as_mig(handle))
        return INVALID_ARGUMENT;
    *ci = as_mig(handle)->ci;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(void *handle, unsigned gi, void **found)
{
    unsigned i;

    AS_WANTED(handle, -2);
    for (i = 0; i < mig_count; i++)
        if (as_gpu(handle) == &gpus[migs[i].gpu] && migs[i].gi == gi) {
            *found = &migs[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

struct instance { void *gpu; unsigned gi, profile, start, size; };

int nvmlGpuInstanceGetInfo(void *handle, struct instance *info)
{
    AS_WANTED(handle, -2);
    if (!as_mig(handle))
        return INVALID_ARGUMENT;
    info->gpu = &gpus[as_mig(handle)->gpu];
    info->gi = as_mig(handle)->gi;
    info->profile = profile_id(as_mig(handle)->profile);
    info->start = info->size = 0x55555555;
    return SUCCESS;
}

#ifndef WITHOUT_PROFILES
struct profile { unsigned numbers[10]; unsigned long long memory; };

int nvmlDeviceGetGpuInstanceProfileInfo(void *handle, unsigned profile, struct profile *info)
{
    unsigned i;

    AS_WANTED(handle, -2);
    if (profile >= PROFILES || !as_gpu(handle))
        return INVALID_ARGUMENT;
    for (i = 0; i < mig_count; i++)
        if (as_gpu(handle) == &gpus[migs[i].gpu] && migs[i].profile == profile) {
            memset(info, 0x55, sizeof *info);
            info->numbers[0] = profile_id(profile);
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}
#endif
