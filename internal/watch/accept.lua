-- accept.lua adds those of a delivery's changes to the stream that are not known, if the watches that they were computed from are
-- current. A change is not known if it was not added yet, has failed, or settled well more than a minute ago.
--
-- KEYS    1 changes (stream)
--         then the remotes whose watches were used (hashes), then for each change what is known of it (hashes)
-- ARGV    1 how long a change is known that does not settle, ms   2 number of remotes; then the version read of each ('' for none)
--         then the number of changes; then for each the number of names and values of its entry, and those in turn
-- Returns 'accepted'   the changes that were not known are in the stream now
--         'duplicate'  all changes are known; nothing changed
--         'stale'      the watches of a remote have changed; nothing changed
-- Fails with WRONGTYPE if a key has another type, and with OOM; then nothing changed.
--
-- The settlement of a change removes what is known of it, or lets it expire. A change whose entry has vanished is not known.

local changes, keep, nremotes = KEYS[1], ARGV[1], tonumber(ARGV[2])
local at = 3 + nremotes
local nchanges = tonumber(ARGV[at])

redis.call('XLEN', changes)
local known, all_known = {}, true
for i = 1, nchanges do
  local entry = redis.call('HGET', KEYS[1 + nremotes + i], 'entry')
  known[i] = entry and redis.call('XRANGE', changes, entry, entry)[1]
  all_known = all_known and known[i]
end
if all_known then return 'duplicate' end
for i = 1, nremotes do
  if (redis.call('HGET', KEYS[1 + i], 'version') or '') ~= ARGV[2 + i] then return 'stale' end
end

for i = 1, nchanges do
  local n, change = tonumber(ARGV[at + 1]), KEYS[1 + nremotes + i]
  if not known[i] then
    redis.call('HSET', change, 'entry', redis.call('XADD', changes, '*', unpack(ARGV, at + 2, at + 1 + n)))
    redis.call('PEXPIRE', change, keep)
  end
  at = at + 1 + n
end
return 'accepted'
