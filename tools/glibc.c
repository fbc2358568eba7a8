/* glibc from 2.32 on says by this variable whether there is a single thread, which the C++ library reads where it is
   compiled with such headers. A library for older releases brings its own answer: there may be several. */
__attribute__((visibility("hidden"))) char __libc_single_threaded;
