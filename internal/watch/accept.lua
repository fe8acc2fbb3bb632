-- accept.lua takes a delivery's changes into the stream, once, if the watches that they were made for are
-- still those.
--
-- KEYS    1 changes (stream)   2 the source's ledger (ZSET: delivery id -> ms)
--         then the places of remotes whose watches were relied on (hashes), then for each change the state of its
--         repository (hash)
-- ARGV    1 delivery id, '' for one that is not kept   2 how long it is kept, ms   3 so many are kept at most
--         4 how many places; then the version read of each ('' for none)
--         then how many changes; then for each: the state's field that names the newest entry to announce a commit,
--         '' when it announces none, number of names and values of its entry, these in turn
-- Returns 'accepted'   the changes are in the stream, and the delivery in the ledger
--         'duplicate'  the delivery was in the ledger: nothing changed
--         'stale'      the watches of a place are others by now: nothing changed
-- Refuses with WRONGTYPE when a key holds something else, and with OOM; then nothing changed.
--
-- What the state is told is a hint, without which the remote is asked once more than need be: it may fail.
-- Each call takes away up to 1,000 entries of the ledger that are too old or too many, so that none takes long.

local changes, ledger = KEYS[1], KEYS[2]
local delivery, keep, most, nplaces = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local function ms(n) return string.format('%.0f', n) end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('XLEN', changes)
if delivery ~= '' then
  local seen = redis.call('ZSCORE', ledger, delivery)
  if seen and tonumber(seen) > now - keep then return 'duplicate' end
end
for i = 1, nplaces do
  if (redis.call('HGET', KEYS[2 + i], 'version') or '') ~= ARGV[4 + i] then return 'stale' end
end

local at = 5 + nplaces
for i = 1, tonumber(ARGV[at]) do
  local newest, n = ARGV[at + 1], tonumber(ARGV[at + 2])
  local id = redis.call('XADD', changes, '*', unpack(ARGV, at + 3, at + 2 + n))
  if newest ~= '' then redis.pcall('HSET', KEYS[2 + nplaces + i], newest, id) end
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
