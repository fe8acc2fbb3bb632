-- release.lua ends a token's business: the lease it owns goes to the next in line, a place it has in
-- the queue is given up. The same call moves its process on to a waiter of its own, named by ARGV 6:
-- granted at once when nobody else waits, else put at the end of the line.
--
-- KEYS, ARGV 1-11: see queue.lua; 6 is '', and the last, when the process has nobody waiting
--
-- Returns {'granted', now, fence, expires}  to token 6
--      or {'held', now, fence, expires, rank, since, worker, job, operation}  token 6 waits
--      or {'free'}   released; there was no token 6
--      or {'gone'}   token 1 did not own the lease, and is in the queue no more; token 6 is untouched
-- Refuses nothing. A repeated call finds the token gone.

local token, follower = ARGV[1], ARGV[6]
local h = redis.call('HMGET', lock, 'owner', 'fence')
if h[1] ~= token then
  dequeue(token)
  return {'gone'}
end

local stored = tonumber(h[2])
local _, to = hand_over(stored)
if to and follower == '' then return {'free'} end
if to then
  wait(follower)
  return held(follower)
end
if follower ~= '' then return grant(follower, stored) end

redis.call('HDEL', lock, 'owner', 'expires')
return {'free'}
