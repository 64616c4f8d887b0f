#pragma once
/* `virga envd`: the control plane's store of environments, a process of its own so that the control
   plane never waits for a disk. It talks to its one parent over a socket (control messages of
   virga.proto: EnvReq in; Ok, EnvList, Error out), and ends when that closes.

       dir/lock          one life at a time
       dir/u/<user>/     a store (estore.h) for each user

   Links are served and pulled by a thread each; everything else happens on one loop, what takes
   long (collecting, opening a store) on libuv's workers. */
/* --fd N --dir DIR [--quota BYTES] [--changes SECONDS] [--bucket s3://... --endpoint URL
   --region NAME --credentials FILE --ca FILE --cache BYTES]; the exit status */
int vg_envd_main(int argc, char **argv);
