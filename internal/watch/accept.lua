-- accept.lua adds a delivery's changes to the stream, once, if the watches that they were computed from are current.
--
-- KEYS    1 changes (stream)   2 the source's ledger (ZSET: delivery ID -> ms)
--         then the remotes whose watches were used (hashes), then for each change the state of its repository (hash)
-- ARGV    1 delivery ID, '' if it has none   2 how long it is kept, ms   3 maximum size of the ledger
--         4 number of remotes; then the version read of each ('' for none)
--         then the number of changes; then for each: the state's field for the newest entry that announces a commit,
--         '' if it announces none, the number of names and values of its entry, and those in turn
-- Returns 'accepted'   the changes are in the stream, and the delivery in the ledger
--         'duplicate'  the delivery was in the ledger; nothing changed
--         'stale'      the watches of a remote have changed; nothing changed
-- Fails with WRONGTYPE if a key has another type, and with OOM; then nothing changed.
--
-- Updating the state may fail: it is a hint that saves a request to the remote.
-- Each call removes at most 1,000 expired or excess entries of the ledger, so that no call takes long.

local changes, ledger = KEYS[1], KEYS[2]
local delivery, keep, most, nremotes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local function ms(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('XLEN', changes)
if delivery ~= '' then
  local accepted = redis.call('ZSCORE', ledger, delivery)
  if accepted and tonumber(accepted) > now - keep then return 'duplicate' end
end
for i = 1, nremotes do
  if (redis.call('HGET', KEYS[2 + i], 'version') or '') ~= ARGV[4 + i] then return 'stale' end
end

local at = 5 + nremotes
for i = 1, tonumber(ARGV[at]) do
  local newest, n = ARGV[at + 1], tonumber(ARGV[at + 2])
  local id = redis.call('XADD', changes, '*', unpack(ARGV, at + 3, at + 2 + n))
  if newest ~= '' then redis.pcall('HSET', KEYS[2 + nremotes + i], newest, id) end
  at = at + 2 + n
end
if delivery ~= '' then
  redis.call('ZADD', ledger, ms(now), delivery)
  local old = redis.call('ZCOUNT', ledger, '-inf', ms(now - keep))
  local excess = math.min(math.max(old, redis.call('ZCARD', ledger) - most), 1000)
  if excess > 0 then redis.call('ZREMRANGEBYRANK', ledger, 0, excess - 1) end
  redis.call('PEXPIRE', ledger, ms(keep))
end
return 'accepted'
