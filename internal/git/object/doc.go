// Package object receives packs and reads Git objects.
//
// A fetch writes its pack to a [Quarantine], which nobody else reads. [Quarantine.Index] receives a complete pack,
// [Quarantine.Unpack] one that builds on objects of a store; both check every object and stay within [Limits].
// [Quarantine.Release] then moves the objects into the store. [Store] reads the objects of bare repositories.
//
// # Memory
//
// Receiving a pack takes memory for the number of its objects, not for their sizes. Contents above 1 MiB pass through
// temporary files in the quarantine.
//
// # Failures
//
//	a pack or object that is damaged         retryable, ClassCorrupt
//	a missing object                         retryable, ClassCorrupt
//	a file, the objects of a pack, or their  permanent, ClassQuota; refused before they are inflated
//	number above Limits
//	a commit, tag or tree above 64 MiB       permanent, ClassQuota
//	a mode or link that Git does not make    permanent, ClassHostile
//	a failing disk                           retryable, ClassVolume
//
// go-git may panic on damaged files. The methods of Quarantine turn that into an error; callers of a Store defer
// [RecoverCorrupt].
package object
