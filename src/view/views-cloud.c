/* Pools, nodes, GPUs, environments and the cloud itself as JSON. */
#include "gpu/near.h"
#include "view/view-int.h"
#include "view/views.h"

#include <string.h>

SHOWN(pool, "Pool", pool_info, PLAIN("name"), AS("class", "class_name"), PLAIN("fault_domain"),
      AS("default", "is_default"), INSIDE("shape", "shape", resources), PLAIN("nodes"),
      PLAIN("free_slots"), PLAIN("total_slots"), PLAIN("running"), PLAIN("queued"),
      PLAIN("network"), PLAIN("description"), INSIDE("price", "price", price));
SHOWN(pools, "Pools", pool_list, INSIDE("pools", "pool", pool));

SHOWN(node, "Node", node_info, PLAIN("id"), PLAIN("name"), PLAIN("state"), PLAIN("unfit"),
      INSIDE("total", "total", resources), INSIDE("used", "used", resources), PLAIN("tasks"),
      PLAIN("gpu_model"), LABELS("labels", "label"), AS("pools", "pool"), PLAIN("version"),
      PLAIN("address"), PLAIN("last_seen_usec"), PLAIN("cert_expires_usec"));
SHOWN(nodes, "Nodes", node_list, INSIDE("nodes", "node", node));

SHOWN(gpu_usage, "GpuUsage", gpu_usage, MAYBE("sm_mean_milli"), MAYBE("sm_max_percent"),
      MAYBE("mem_mean_milli"), MAYBE("mem_max_percent"), MAYBE("mem_peak_bytes"),
      MAYBE("energy_mj"), MAYBE("power_mw"), MAYBE("pcie_rx_bytes"), MAYBE("pcie_tx_bytes"),
      MAYBE("sampled_usec"), MAYBE("idle_usec"), MAYBE("unused_usec"), MAYBE("share_limit_bytes"),
      MAYBE("share_used_bytes"), MAYBE("share_peak_bytes"), MAYBE("share_refused"));
SHOWN(gpu_holder, "GpuHolder", gpu_holder, ID("task", "task_id"), PLAIN("name"), PLAIN("user"),
      PLAIN("gpu_milli"), INSIDE("usage", "usage", gpu_usage));
SHOWN(gpu_process, "GpuProcess", gpu_proc, PLAIN("pid"), ID("task", "task_id"), MAYBE("sm_percent"),
      MAYBE("mem_bytes"));

static json_t *gpu_simulated(const ProtobufCMessage *m) {
    const Vg__Pb__GpuState *g = (const Vg__Pb__GpuState *)m;
    return json_boolean(g->vendor && strcmp(g->vendor, "simulated") == 0);
}

static json_t *gpu_near(const ProtobufCMessage *m) {
    const Vg__Pb__GpuState *g = (const Vg__Pb__GpuState *)m;
    json_t *near = json_array();
    char name[8];
    for (size_t i = 0; i < g->n_near; i++)
        json_array_append_new(near, i == g->index ? json_null()
                                                  : vg_json_text(vg_near_name(g->near[i], name)));
    return near;
}

SHOWN(gpu, "Gpu", gpu_state, PLAIN("node"), PLAIN("index"), PLAIN("state"), PLAIN("reason"),
      PLAIN("model"), PLAIN("vendor"), MADE("simulated", gpu_simulated, "{\"type\": \"boolean\"}"),
      PLAIN("uuid"), PLAIN("bus"), PLAIN("driver"), MAYBE("mem_bytes"), MAYBE("numa"),
      MAYBE("island"),
      MADE("near", gpu_near,
           "{\"type\": \"array\", \"items\": {\"type\": [\"string\", \"null\"]}}"),
      MAYBE("pcie_gen"), MAYBE("pcie_width"), MAYBE("power_limit_mw"), PLAIN("mig"),
      AS("mig_uuids", "mig_uuid"), MAYBE("age_usec"), MAYBE("sm_percent"), MAYBE("mem_percent"),
      MAYBE("mem_used_bytes"), MAYBE("power_mw"), MAYBE("temp_c"), MAYBE("sm_mhz"),
      MAYBE("mem_mhz"), MAYBE("energy_mj"), MAYBE("ecc_corrected"), MAYBE("ecc_uncorrected"),
      MAYBE("xid"), PLAIN("fault"), INSIDE("holders", "holder", gpu_holder),
      INSIDE("processes", "proc", gpu_process));
SHOWN(gpus, "Gpus", gpu_list, INSIDE("gpus", "gpu", gpu));

SHOWN(status, "Status", status_info, PLAIN("cloud"), PLAIN("version"), PLAIN("address"),
      PLAIN("url"), PLAIN("nodes"), PLAIN("nodes_ready"), PLAIN("running"), PLAIN("queued"),
      PLAIN("home"), PLAIN("pid"), PLAIN("rss_bytes"), PLAIN("up_usec"), PLAIN("wire_msgs"),
      HEX("ca_fingerprint"));

/* An image's configuration, where there is one. */
static json_t *env_config(const ProtobufCMessage *m) {
    const Vg__Pb__EnvInfo *e = (const Vg__Pb__EnvInfo *)m;
    return e->config ? json_loads(e->config, 0, NULL) : NULL;
}

SHOWN(environment, "Environment", env_info, PLAIN("name"), PLAIN("version"), PLAIN("owner"),
      HEX("root"), PLAIN("files"), PLAIN("bytes"), PLAIN("missing"), PLAIN("source"),
      PLAIN("created_usec"),
      {.name = "config",
       .kind = VG_VIEW_MADE,
       .make = env_config,
       .schema = "{}",
       .flags = VG_VIEW_RARE});
SHOWN(environments, "Environments", env_list, INSIDE("environments", "env", environment),
      PLAIN("used_bytes"), PLAIN("quota_bytes"));
