/* Reads the control file: `key=value` lines, see tests/rig/README.md.
 *
 * Not here: what NVML answers. Invariant: half a file is never read, because the controller renames
 * a whole one into place, and a line that is not understood is named on stderr, never skipped
 * in silence.
 */
#include "control.h"

#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MIB 1048576.0

const char *const function_names[FUNCTION_COUNT] = {
#define F(symbol, word, where) #symbol,
    FUNCTIONS(F)
#undef F
};
static const char *const function_words[FUNCTION_COUNT] = {
#define F(symbol, word, where) #word,
    FUNCTIONS(F)
#undef F
};

struct line {
    char *key, *value;
};

enum kind { NUMBER, BYTES, WORDS, REAL };
struct key {
    const char *name;
    enum kind kind;
    size_t offset, size;
    size_t set_at; /* offset of the bool that says it was given; 0: none */
};
#define FIELD(type, name, kind) {#name, kind, offsetof(struct type, name), sizeof(((struct type *)0)->name), 0}
#define NAMED(type, key, name, kind) {key, kind, offsetof(struct type, name), sizeof(((struct type *)0)->name), 0}
#define GIVEN(type, key, name, kind) \
    {key, kind, offsetof(struct type, name), sizeof(((struct type *)0)->name), offsetof(struct type, name##_set)}

static const struct key gpu_keys[] = {
    FIELD(gpu, uuid, WORDS), FIELD(gpu, name, WORDS), FIELD(gpu, pci, WORDS), FIELD(gpu, serial, WORDS),
    FIELD(gpu, xid, WORDS), GIVEN(gpu, "samples", samples, WORDS), FIELD(gpu, pids, WORDS),
    NAMED(gpu, "mem_total_mib", mem_total, BYTES), NAMED(gpu, "mem_used_mib", mem_used, BYTES),
    NAMED(gpu, "mem_reserved_mib", mem_reserved, BYTES),
    GIVEN(gpu, "process_mem_mib", process_mem, BYTES), FIELD(gpu, util, NUMBER),
    FIELD(gpu, mem_util, NUMBER), FIELD(gpu, encoder_util, NUMBER), FIELD(gpu, decoder_util, NUMBER),
    FIELD(gpu, power_mw, NUMBER), FIELD(gpu, power_average_mw, NUMBER),
    FIELD(gpu, power_instant_mw, NUMBER), FIELD(gpu, power_limit_mw, NUMBER),
    FIELD(gpu, energy_mj, NUMBER), FIELD(gpu, energy_grows, NUMBER), FIELD(gpu, temp, NUMBER),
    FIELD(gpu, fan, NUMBER), FIELD(gpu, sm_clock, NUMBER), FIELD(gpu, mem_clock, NUMBER),
    FIELD(gpu, max_clock, NUMBER), FIELD(gpu, throttle, NUMBER), FIELD(gpu, ecc, NUMBER),
    FIELD(gpu, processes, NUMBER), FIELD(gpu, mig, NUMBER), FIELD(gpu, absent, NUMBER),
    FIELD(gpu, minor, NUMBER), FIELD(gpu, display, NUMBER),
    GIVEN(gpu, "samples_hz", samples_hz, REAL),
};
static const struct key slice_keys[] = {
    FIELD(slice, uuid, WORDS), FIELD(slice, name, WORDS),
    NAMED(slice, "mem_total_mib", mem_total, BYTES), NAMED(slice, "mem_used_mib", mem_used, BYTES),
    NAMED(slice, "mem_reserved_mib", mem_reserved, BYTES),
};
static const struct key top_keys[] = {
    FIELD(control, driver, WORDS), FIELD(control, nvml, WORDS), FIELD(control, cuda, NUMBER),
    FIELD(control, trace, WORDS), NAMED(control, "missing", missing_text, WORDS),
    GIVEN(control, "count", count, NUMBER), GIVEN(control, "gpus", gpus, NUMBER),
    FIELD(control, delay_us, NUMBER),
};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

double steady_s(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static bool put(void *record, const struct key *keys, size_t count, const char *name, const char *value)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(keys[i].name, name) != 0)
            continue;
        char *place = (char *)record + keys[i].offset;
        if (keys[i].kind == WORDS)
            snprintf(place, keys[i].size, "%s", value);
        else if (keys[i].kind == REAL)
            *(double *)place = strtod(value, NULL);
        else if (keys[i].kind == BYTES)
            *(unsigned long long *)place = (unsigned long long)llround(strtod(value, NULL) * MIB);
        else
            *(unsigned long long *)place = strtoull(value, NULL, 0);
        if (keys[i].set_at)
            *((char *)record + keys[i].set_at) = true;
        return true;
    }
    return false;
}

/* `error.<what>` and `hang.<what>`: rank 0 is `all`, 1 a word, 2 one symbol. The finer one wins,
 * so the ranks are read in this order. True when the line is one of these and names something. */
static bool put_trouble(struct trouble *trouble, const char *name, const char *value, int rank)
{
    bool is_error = strncmp(name, "error.", 6) == 0;
    if (!is_error && strncmp(name, "hang.", 5) != 0)
        return false;
    const char *what = strchr(name, '.') + 1;
    bool known = false;
    for (int fn = 0; fn < FUNCTION_COUNT; fn++) {
        bool all = strcmp(what, "all") == 0, word = strcmp(what, function_words[fn]) == 0;
        bool symbol = strcmp(what, function_names[fn]) == 0;
        known = known || all || word || symbol;
        if (!(rank == 0 ? all : rank == 1 ? word : symbol))
            continue;
        if (is_error)
            trouble->code[fn] = (int)strtol(value, NULL, 0);
        else
            trouble->hang_s[fn] = strcmp(value, "inf") == 0 ? INFINITY : strtof(value, NULL);
    }
    return known;
}

static struct field *find_field(struct gpu *gpu, unsigned int id)
{
    for (unsigned int i = 0; i < gpu->field_count; i++)
        if (gpu->fields[i].id == id)
            return &gpu->fields[i];
    if (gpu->field_count == MAX_FIELDS)
        return NULL;
    gpu->fields[gpu->field_count] = (struct field){.id = id};
    return &gpu->fields[gpu->field_count++];
}

/* `field.186=250000`, `error.field.186=3`, `error.field=4` (the code of every field). */
static bool put_field(struct gpu *gpu, const char *name, const char *value)
{
    unsigned int id;
    char rest;
    bool error = true;
    if (strcmp(name, "error.field") == 0)
        id = 0;
    else if (sscanf(name, "field.%u%c", &id, &rest) == 1)
        error = false;
    else if (sscanf(name, "error.field.%u%c", &id, &rest) != 1)
        return false;
    struct field *field = find_field(gpu, id);
    if (!field)
        return false;
    if (error)
        field->code = (int)strtol(value, NULL, 0);
    else {
        field->value = strtoull(value, NULL, 0);
        field->has_value = true;
    }
    return true;
}

static bool put_slice(struct gpu *gpu, const char *name, const char *value, int rank)
{
    unsigned int number;
    int used = 0;
    if (sscanf(name, "mig.%u.%n", &number, &used) != 1 || !used || number >= MAX_SLICES)
        return false;
    struct slice *slice = &gpu->slices[number];
    return put(slice, slice_keys, LENGTH(slice_keys), name + used, value) ||
           put_trouble(&slice->trouble, name + used, value, rank);
}

/* One line, for one rank of troubles; the plain keys are put again each time, which changes nothing. */
static bool put_line(struct control *control, const struct line *line, int rank)
{
    unsigned int number;
    int used = 0;
    if (sscanf(line->key, "gpu.%u.%n", &number, &used) != 1 || !used)
        return put(control, top_keys, LENGTH(top_keys), line->key, line->value) ||
               put_trouble(&control->trouble, line->key, line->value, rank);
    if (number >= control->gpus)
        return number < MAX_GPUS; /* more GPUs are described than exist now */
    struct gpu *gpu = &control->gpu[number];
    const char *name = line->key + used;
    if (put(gpu, gpu_keys, LENGTH(gpu_keys), name, line->value) || put_field(gpu, name, line->value) ||
        put_slice(gpu, name, line->value, rank))
        return true;
    if (!put_trouble(&gpu->trouble, name, line->value, rank))
        return false;
    /* A GPU that is lost takes its slices along; other troubles of it are not theirs. */
    if (rank == 0)
        for (int slice = 0; slice < MAX_SLICES; slice++)
            put_trouble(&gpu->slices[slice].trouble, name, line->value, rank);
    return true;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = 0;
    return text;
}

static size_t split_lines(char *text, struct line *lines, size_t room)
{
    size_t count = 0;
    char *rest = text;
    for (char *one; (one = strsep(&rest, "\n")) && count < room;) {
        one = trim(one);
        char *equals = strchr(one, '=');
        if (!*one || *one == '#' || !equals)
            continue;
        *equals = 0;
        lines[count++] = (struct line){trim(one), trim(equals + 1)};
    }
    return count;
}

static void count_gpus(struct control *control, const struct line *lines, size_t count)
{
    unsigned int number, named = 0;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(lines[i].key, "gpus") == 0 || strcmp(lines[i].key, "count") == 0)
            put(control, top_keys, LENGTH(top_keys), lines[i].key, lines[i].value);
        else if (sscanf(lines[i].key, "gpu.%u.", &number) == 1 && number >= named)
            named = number + 1;
    }
    if (!control->gpus_set) {
        control->gpus = named > 2 ? named : 2;
        if (control->count_set && control->count > control->gpus)
            control->gpus = control->count;
    }
    if (control->gpus > MAX_GPUS)
        control->gpus = MAX_GPUS;
}

static void default_gpu(struct gpu *gpu, unsigned int number)
{
    snprintf(gpu->uuid, TEXT, "GPU-00000000-0000-4000-8000-%012u", number);
    snprintf(gpu->name, TEXT, "NVIDIA A100-SXM4-40GB");
    snprintf(gpu->pci, TEXT, "00000000:%02X:00.0", number + 1);
    snprintf(gpu->serial, TEXT, "%013u", number);
    gpu->mem_total = (unsigned long long)(40960 * MIB);
    gpu->mem_used = (unsigned long long)(10 * MIB);
    gpu->mem_reserved = (unsigned long long)(500 * MIB);
    gpu->power_mw = 55000;
    gpu->power_limit_mw = 400000;
    gpu->energy_mj = 1000000;
    gpu->temp = 40;
    gpu->sm_clock = 1410;
    gpu->mem_clock = 1215;
    gpu->max_clock = 1410;
    gpu->minor = number;
    gpu->samples_hz = 6;
    for (unsigned int i = 0; i < MAX_SLICES; i++) {
        struct slice *slice = &gpu->slices[i];
        snprintf(slice->uuid, TEXT, "MIG-00000000-0000-4000-8000-%08u%04u", number, i);
        snprintf(slice->name, TEXT, "NVIDIA A100-SXM4-40GB MIG 1g.5gb");
        slice->mem_total = (unsigned long long)(4864 * MIB);
        slice->mem_used = (unsigned long long)(10 * MIB);
    }
}

/* The lists of a GPU, which were kept as text until every line was read. */
static void finish_gpu(struct gpu *gpu)
{
    char text[1024], *rest = text;
    snprintf(text, sizeof text, "%s", gpu->samples);
    for (char *one; (one = strsep(&rest, ",")) && gpu->sample_count < MAX_SAMPLES;)
        if (*trim(one))
            gpu->sample_values[gpu->sample_count++] = strtoull(one, NULL, 0);
    rest = strcpy(text, gpu->pids);
    for (char *one; (one = strsep(&rest, ",")) && gpu->pid_count < MAX_PIDS;)
        if (*trim(one))
            gpu->pid_values[gpu->pid_count++] = (unsigned int)strtoul(one, NULL, 0);
    if (gpu->mig > MAX_SLICES)
        gpu->mig = MAX_SLICES;
    /* Processes that exist: the caller, its parent, and then always the first. */
    for (unsigned int i = gpu->pid_count; i < gpu->processes && i < MAX_PIDS; i++) {
        gpu->pid_values[i] = i == 0 ? (unsigned int)getpid() : i == 1 ? (unsigned int)getppid() : 1;
        gpu->pid_count = i + 1;
    }
}

static void read_missing(struct control *control)
{
    char *rest = control->missing_text;
    for (char *one; (one = strsep(&rest, ","));) {
        bool known = !*trim(one);
        for (int fn = 0; fn < FUNCTION_COUNT; fn++)
            if (strcmp(trim(one), function_names[fn]) == 0)
                known = control->missing[fn] = true;
        if (!known)
            fprintf(stderr, "fleetrig: not understood: missing=%s\n", one);
    }
}

static struct control *parse(char *text)
{
    static char empty[1];
    struct control *control = calloc(1, sizeof *control);
    size_t room = 1;
    for (const char *at = text ? text : empty; *at; at++)
        room += *at == '\n';
    struct line *lines = calloc(room, sizeof *lines);
    if (!control || !lines)
        abort();
    size_t count = split_lines(text ? text : empty, lines, room);
    snprintf(control->driver, TEXT, "535.161.08");
    snprintf(control->nvml, TEXT, "12.535.161.08");
    control->cuda = 12020;
    count_gpus(control, lines, count);
    control->gpu = calloc(control->gpus + 1, sizeof *control->gpu);
    if (!control->gpu)
        abort();
    for (unsigned int i = 0; i < control->gpus; i++)
        default_gpu(&control->gpu[i], i);
    unsigned long long exist = control->gpus;
    for (int rank = 0; rank < 3; rank++)
        for (size_t i = 0; i < count; i++)
            if (!put_line(control, &lines[i], rank) && rank == 0)
                fprintf(stderr, "fleetrig: not understood: %s=%s\n", lines[i].key, lines[i].value);
    control->gpus = exist; /* not above MAX_GPUS, whatever the line says */
    for (unsigned int i = 0; i < control->gpus; i++)
        finish_gpu(&control->gpu[i]);
    read_missing(control);
    free(lines);
    return control;
}

static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    if (fd < 0)
        return NULL;
    char *text = fstat(fd, &found) == 0 ? calloc(1, (size_t)found.st_size + 1) : NULL;
    for (ssize_t had = 0, got; text && had < found.st_size; had += got)
        if ((got = read(fd, text + had, (size_t)(found.st_size - had))) <= 0)
            break;
    close(fd);
    return text;
}

struct meter {
    double grown_mj, at_s;
};
static struct meter meters[MAX_GPUS];
static pthread_mutex_t meter_lock = PTHREAD_MUTEX_INITIALIZER;

/* Adds to each counter what the GPU drew under `old` until now; a value set anew starts anew. */
static void settle_energy(const struct control *old, const struct control *next)
{
    double at_s = steady_s();
    for (unsigned int i = 0; i < MAX_GPUS; i++) {
        const struct gpu *before = old && i < old->gpus ? &old->gpu[i] : NULL;
        const struct gpu *after = i < next->gpus ? &next->gpu[i] : NULL;
        if (before && before->energy_grows)
            meters[i].grown_mj += (double)before->power_mw * (at_s - meters[i].at_s);
        if (!before || !after || before->energy_mj != after->energy_mj)
            meters[i].grown_mj = 0;
        meters[i].at_s = at_s;
    }
}

unsigned long long energy_now(const struct control *now, unsigned int gpu)
{
    pthread_mutex_lock(&meter_lock);
    settle_energy(now, now);
    unsigned long long grown_mj = (unsigned long long)meters[gpu].grown_mj;
    pthread_mutex_unlock(&meter_lock);
    return now->gpu[gpu].energy_mj + grown_mj;
}

struct version {
    struct stat file; /* of this reading; all zero where there is none */
    struct control *control;
};
static _Atomic(struct version *) current;
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

static bool same(const struct stat *one, const struct stat *other)
{
    return one->st_ino == other->st_ino && one->st_size == other->st_size &&
           one->st_mtim.tv_sec == other->st_mtim.tv_sec && one->st_mtim.tv_nsec == other->st_mtim.tv_nsec;
}

/* The word that the controller counts up after each change, where there is one: it costs nothing to
 * look at, while a stat costs a microsecond or two, more than the rest of a call. */
static volatile unsigned long long *find_word(const char *path)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.changes", path);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *found = mmap(NULL, sizeof(unsigned long long), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return found == MAP_FAILED ? NULL : found;
}

static const struct control *look(const char *path)
{
    static const struct version none;
    struct version *version = atomic_load(&current);
    struct stat found = none.file;
    if (*path && stat(path, &found) != 0)
        found = none.file;
    if (version && same(&version->file, &found))
        return version->control;
    pthread_mutex_lock(&reading);
    version = atomic_load(&current);
    if (!version || !same(&version->file, &found)) {
        struct version *next = calloc(1, sizeof *next);
        if (!next)
            abort();
        next->file = found;
        char *text = *path ? read_file(path) : NULL;
        next->control = parse(text);
        free(text);
        pthread_mutex_lock(&meter_lock);
        settle_energy(version ? version->control : NULL, next->control);
        pthread_mutex_unlock(&meter_lock);
        atomic_store(&current, next);
        version = next;
    }
    pthread_mutex_unlock(&reading);
    return version->control;
}

static const char *path;
static volatile unsigned long long *word;

static void find_control(void)
{
    const char *given = getenv("FLEETRIG_CONTROL");
    path = given ? given : "";
    word = *path ? find_word(path) : NULL;
}

const struct control *control_now(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static atomic_ullong seen_word;
    static _Atomic double seen_s;
    pthread_once(&once, find_control);
    if (!word)
        return look(path);
    /* A file that was replaced by hand, without the word, is seen a little later. */
    unsigned long long word_now = *word;
    double at_s = steady_s();
    struct version *version = atomic_load(&current);
    if (version && word_now == atomic_load(&seen_word) && at_s - atomic_load(&seen_s) < 0.002)
        return version->control;
    const struct control *control = look(path);
    atomic_store(&seen_word, word_now);
    atomic_store(&seen_s, at_s);
    return control;
}
