// Package rollup keeps counts and latencies of settled changes for a week, in few keys of Redis.
//
//	recorder := rollup.NewRecorder(client, namespace)
//	go recorder.Run(ctx)
//	recorder.Count(rollup.Synced, 120*time.Millisecond)
//
//	points, err := rollup.Reader{Redis: client, Namespace: namespace}.Read(ctx, now.Add(-24*time.Hour), now, 10*time.Minute)
//
// Each worker counts the changes that it settles, and adds its counts to those of the others every 10 s. Minutes are kept for 6 to 7
// hours, in a hash per hour; ten minutes for 7 to 8 days, in a hash per day. All hashes together take at most 5 MB, and about
// 1 MB if latencies differ by less than a factor of 50 within ten minutes.
//
// A worker also records that it ran. So a [Point] distinguishes a time without changes from one without data: when no worker
// with rollups ran, or Redis was unavailable. A worker that is killed, or cannot reach Redis, loses what it counted since its
// last write.
package rollup
