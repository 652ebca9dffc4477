/* A libamdhip64 that opens and is of no use: -DSTATUS=n is what hipGetDeviceCount answers, -DCOUNT=n
 * how many devices it counts, -DNAMED adds HIP's own name of the status. Nothing else is there. */
int hipGetDeviceCount(int* count) {
  *count = COUNT;
  return STATUS;
}

#if defined(NAMED)
const char* hipGetErrorName(int status) { return status == 100 ? "hipErrorNoDevice" : "hipErrorUnknown"; }
#endif
