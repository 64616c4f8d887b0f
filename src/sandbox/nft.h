#pragma once
/* Just enough nf_tables, family ip: tables, chains and rules as netlink messages in a batch that
   the kernel takes as a whole or not at all. A rule is made of matches that must all hold, then a
   statement:

       vg_nft_rule(b, "t", "forward");
       vg_nft_match_addr(b, VG_NFT_DADDR, subnet, 16, VG_NFT_EQ);
       vg_nft_verdict(b, NF_DROP, NULL);
       vg_nft_rule_end(b);

   Addresses are in host byte order. */
#include "sandbox/netlink.h"

#include <netinet/in.h> /* the C library's must come before the kernel's */

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <stdbool.h>

enum vg_nft_test { VG_NFT_EQ = NFT_CMP_EQ, VG_NFT_NOT = NFT_CMP_NEQ };
enum vg_nft_side { VG_NFT_SADDR = 12, VG_NFT_DADDR = 16 }; /* offsets in the IPv4 header */

void vg_nft_begin(struct vg_nlb *b); /* resets b */
int vg_nft_commit(struct vg_nl *nl, struct vg_nlb *b);

void vg_nft_table(struct vg_nlb *b, const char *table); /* nothing happens when it exists */
void vg_nft_table_del(struct vg_nlb *b, const char *table);
/* `type` "filter" or "nat" hangs it into `hook` (NF_INET_...); NULL makes one to jump to. */
void vg_nft_chain(struct vg_nlb *b, const char *table, const char *chain, const char *type,
                  unsigned hook, int priority);

void vg_nft_rule(struct vg_nlb *b, const char *table, const char *chain);
void vg_nft_rule_end(struct vg_nlb *b);
/* `name` whole, or as the beginning of longer names. */
void vg_nft_match_iif(struct vg_nlb *b, const char *name, bool prefix, enum vg_nft_test test);
void vg_nft_match_oif(struct vg_nlb *b, const char *name, bool prefix, enum vg_nft_test test);
void vg_nft_match_addr(struct vg_nlb *b, enum vg_nft_side side, uint32_t net, unsigned bits,
                       enum vg_nft_test test);
void vg_nft_match_dport(struct vg_nlb *b, uint8_t proto, uint16_t port);
void vg_nft_match_known(struct vg_nlb *b); /* connection tracking: established or related */
void vg_nft_verdict(struct vg_nlb *b, int verdict, const char *chain); /* chain: for NFT_JUMP */
void vg_nft_masquerade(struct vg_nlb *b);
void vg_nft_dnat(struct vg_nlb *b, uint32_t addr, uint16_t port);

/* The names of all tables, or of all chains of one table; `each` as in vg_nl_dump. No such table
   means no chains. */
typedef int vg_nft_each(const char *name, void *arg);
int vg_nft_tables(struct vg_nl *nl, struct vg_nlb *b, vg_nft_each *each, void *arg);
int vg_nft_chains(struct vg_nl *nl, struct vg_nlb *b, const char *table, vg_nft_each *each,
                  void *arg);
